package org.apache.hadoop.fs;

import java.io.IOException;
import java.net.URI;
import org.apache.hadoop.conf.Configuration;

public class Path {
    public Path(URI uri) {
    }

    public Path(Path parent, Path child) {
    }

    public Path(String scheme, String authority, String path) {
    }

    public native URI toUri();

    public native Path getParent();

    public native String getName();

    public native boolean isAbsolute();

    public native FileSystem getFileSystem(Configuration conf) throws IOException;

    public native boolean equals(Object other);

    public native int hashCode();

    public native String toString();
}
