package org.apache.hadoop.fs;

import java.io.IOException;

public abstract class FileSystem {
    public native Path makeQualified(Path path);

    public native long getDefaultBlockSize(Path path);

    public native boolean exists(Path path) throws IOException;

    public native FSDataOutputStream create(Path path, boolean overwrite) throws IOException;

    @SuppressWarnings("rawtypes")
    public native FSDataOutputStreamBuilder createFile(Path path);
}
