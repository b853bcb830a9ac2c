package com.fasterxml.jackson.databind;

import java.io.File;

public class ObjectMapper {
    public native JsonNode readTree(String content);

    public native JsonNode readTree(File file);
}
