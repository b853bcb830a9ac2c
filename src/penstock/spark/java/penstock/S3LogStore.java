package penstock;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Commits to Delta tables on S3, by Hadoop's S3A client (3.4.2 or later). Delta's own store for it is safe within
 * one Java only, or needs a DynamoDB table beside it: both are older than S3's conditional writes.
 *
 * 1. A commit is one PUT with `If-None-Match: *`: whole, durable when `write` returns, and never over another.
 * 2. A MERGE that was made from another version than its writer expects is refused, as in DurableLogStore.
 *
 * A PUT whose answer is lost is repeated by the client, and then finds its own commit there. That is reported like
 * another's: who reads the table afterwards sees that it has the offset already.
 */
public class S3LogStore extends HadoopFileSystemLogStore {
    private static final String ONLY_IF_ABSENT = "fs.option.create.conditional.overwrite";

    public S3LogStore(Configuration hadoopConf) {
        super(hadoopConf);
    }

    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration hadoopConf)
            throws IOException {
        String expected = hadoopConf.get(DurableLogStore.EXPECTED);
        ByteArrayOutputStream content = new ByteArrayOutputStream();
        while (actions.hasNext()) {
            String line = (String) actions.next();
            DurableLogStore.refuseUnexpected(line, expected);
            content.write(line.getBytes(StandardCharsets.UTF_8));
            content.write('\n');
        }
        FileSystem files = path.getFileSystem(hadoopConf);
        if (overwrite.booleanValue()) {
            put(files.create(path, true), content);
            return;
        }
        try {
            FSDataOutputStreamBuilder builder = files.createFile(path);
            builder.overwrite(false);
            builder.must(ONLY_IF_ABSENT, true);
            put((FSDataOutputStream) builder.build(), content);
        } catch (IOException error) {
            if (saysThatItIsThere(error)) {
                throw new java.nio.file.FileAlreadyExistsException(path.toString());
            }
            throw error;
        }
    }

    /** Checkpoints, which Delta writes past us, need no renaming: an object appears whole. */
    public Boolean isPartialWriteVisible(Path path, Configuration hadoopConf) {
        return Boolean.FALSE;
    }

    private static void put(FSDataOutputStream stream, ByteArrayOutputStream content) throws IOException {
        try {
            content.writeTo(stream);
        } finally {
            stream.close();
        }
    }

    /** By name: the class of the second belongs to the S3A client, which need not be there to compile this. */
    private static boolean saysThatItIsThere(IOException error) {
        return error instanceof FileAlreadyExistsException
            || error.getClass().getSimpleName().equals("RemoteFileChangedException");
    }
}
