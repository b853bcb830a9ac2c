package penstock;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Commits to Delta tables on S3, by Hadoop's S3A client (3.4.2 or later). Delta's own store for it is safe within
 * one Java only, or needs a DynamoDB table beside it: both are older than S3's conditional writes.
 *
 * 1. A commit is one PUT with `If-None-Match: *`: whole, durable when `write` returns, and never over another.
 * 2. A MERGE or an append that was made from another version than its writer expects is refused, as in DurableLogStore.
 * 3. A listing starts at the name that is asked for (S3's `start-after`): a page has 1,000 names, and a day of
 *    commits has many. Where Delta or the client don't offer it, all is listed, and `wholeListing` says why.
 *
 * A PUT whose answer is lost is repeated by the client, and then finds its own commit there. That is reported like
 * another's: who reads the table afterwards sees that it has the offset already.
 */
public class S3LogStore extends HadoopFileSystemLogStore {
    private static final String ONLY_IF_ABSENT = "fs.option.create.conditional.overwrite";

    private static volatile String wholeListing;

    public S3LogStore(Configuration hadoopConf) {
        super(hadoopConf);
    }

    /** Why the last listing that could not start at a name was of the whole log; null if there was none. */
    public static String wholeListing() {
        return wholeListing;
    }

    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration hadoopConf)
            throws IOException {
        String expected = hadoopConf.get(DurableLogStore.EXPECTED);
        ByteArrayOutputStream content = new ByteArrayOutputStream();
        while (actions.hasNext()) {
            String line = actions.next();
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
            FSDataOutputStreamBuilder<?, ?> builder = files.createFile(path);
            builder.overwrite(false);
            builder.must(ONLY_IF_ABSENT, true);
            put(builder.build(), content);
        } catch (IOException error) {
            if (saysThatItIsThere(error)) {
                throw new java.nio.file.FileAlreadyExistsException(path.toString());
            }
            throw error;
        }
    }

    public Iterator<FileStatus> listFrom(Path path, Configuration hadoopConf) throws IOException {
        FileSystem files = path.getFileSystem(hadoopConf);
        Path from = files.makeQualified(path);
        FileStatus[] seen = startingAt(files, from);
        if (seen == null) {
            return super.listFrom(path, hadoopConf);
        }
        // What lies deeper is listed too.
        List<FileStatus> found = new ArrayList<FileStatus>();
        for (int place = 0; place < seen.length; place++) {
            if (seen[place].getPath().getParent().equals(from.getParent())) {
                found.add(seen[place]);
            }
        }
        if (found.isEmpty() && !files.exists(from.getParent())) {
            throw new FileNotFoundException("No such file or directory: " + from.getParent());
        }
        return found.iterator();
    }

    /** Delta's own `start-after`; null if it can't be had. By name: the S3A client need not be there to compile. */
    private static FileStatus[] startingAt(FileSystem files, Path from) throws IOException {
        try {
            Class<?>[] kinds = new Class<?>[] {FileSystem.class, Path.class, Path.class};
            Object[] arguments = new Object[] {files, from, from.getParent()};
            return (FileStatus[]) Class.forName("io.delta.storage.internal.S3LogStoreUtil")
                .getMethod("s3ListFromArray", kinds).invoke(null, arguments);
        } catch (InvocationTargetException failed) {
            if (failed.getCause() instanceof IOException) {
                throw (IOException) failed.getCause();
            }
            wholeListing = String.valueOf(failed.getCause());
        } catch (ReflectiveOperationException anotherDelta) {
            wholeListing = anotherDelta.toString();
        } catch (LinkageError anotherClient) {
            wholeListing = anotherClient.toString();
        }
        return null;
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
