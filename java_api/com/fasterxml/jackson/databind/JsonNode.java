package com.fasterxml.jackson.databind;

import java.util.Iterator;

public abstract class JsonNode {
    public abstract JsonNode get(String fieldName);

    public abstract Iterator<JsonNode> elements();

    public abstract String asText();

    public abstract long asLong();
}
