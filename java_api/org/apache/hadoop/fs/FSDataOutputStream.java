package org.apache.hadoop.fs;

import java.io.DataOutputStream;
import java.io.IOException;

public class FSDataOutputStream extends DataOutputStream {
    private FSDataOutputStream() {
        super(null);
    }

    public native void close() throws IOException;
}
