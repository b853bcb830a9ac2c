package org.apache.hadoop.fs.s3a;

import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;

/** An object, or what objects lie under. */
public class S3AFileStatus extends FileStatus {
    private static final long serialVersionUID = 1L;

    S3AFileStatus(long length, boolean isDirectory, long modified, Path path) {
        super(length, isDirectory, 1, 1 << 25, modified, path);
    }
}
