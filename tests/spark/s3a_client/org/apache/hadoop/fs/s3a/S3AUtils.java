package org.apache.hadoop.fs.s3a;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.RemoteIterator;

/** What Delta asks of S3A's helpers. */
public final class S3AUtils {
    private S3AUtils() {
    }

    public static int intOption(Configuration conf, String key, int otherwise, int least) {
        return Math.max(conf.getInt(key, otherwise), least);
    }

    public static S3AFileStatus[] iteratorToStatuses(RemoteIterator<S3AFileStatus> found) throws IOException {
        List<S3AFileStatus> all = new ArrayList<S3AFileStatus>();
        while (found.hasNext()) {
            all.add(found.next());
        }
        return all.toArray(new S3AFileStatus[0]);
    }
}
