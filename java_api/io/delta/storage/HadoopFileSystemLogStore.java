package io.delta.storage;

import java.io.IOException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;

public abstract class HadoopFileSystemLogStore {
    public HadoopFileSystemLogStore(Configuration hadoopConf) {
    }

    public native Iterator<FileStatus> listFrom(Path path, Configuration hadoopConf) throws IOException;
}
