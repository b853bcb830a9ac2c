package org.apache.hadoop.fs;

public class FileStatus {
    public FileStatus(
            long length, boolean isdir, int blockReplication, long blocksize, long modificationTime, Path path) {
    }

    public native Path getPath();
}
