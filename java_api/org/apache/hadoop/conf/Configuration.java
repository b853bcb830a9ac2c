package org.apache.hadoop.conf;

public class Configuration {
    public native String get(String name);
}
