package penstock;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.delta.storage.HadoopFileSystemLogStore;
import java.io.BufferedWriter;
import java.io.File;
import java.io.FileNotFoundException;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStreamWriter;
import java.net.URI;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.CopyOption;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.OpenOption;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Commits to Delta tables on a file system of this machine. Delta's own store for it looks whether the commit's
 * file is there and then renames over it, so a writer that was frozen in between overwrites the commit of
 * another; and it leaves it to the kernel when anything reaches the disk.
 *
 * 1. The data files that a commit adds are on disk before the commit is.
 * 2. A commit appears whole, by a hard link, which can't replace another. It is on disk when `write` returns.
 * 3. A MERGE, an append or a DELETE that was made from another version than its writer expects (EXPECTED) is
 *    refused.
 * 4. Only files at or behind the name that a listing starts at are looked at. Hadoop's own looks at each file of
 *    the directory, with several system calls, before any is left out: seconds where the log is long.
 */
public class DurableLogStore extends HadoopFileSystemLogStore {
    /** The setting of a session that names the version from which its next MERGE, append or DELETE must be made. */
    public static final String EXPECTED = "penstock.expectedReadVersion";

    private static final ObjectMapper JSON = new ObjectMapper();
    private static final List<String> CHECKED = List.of("MERGE", "WRITE", "DELETE");
    private static final String FIRST_COMMIT = "00000000000000000000.json";
    private static final String LAST_CHECKPOINT = "_last_checkpoint";

    public DurableLogStore(Configuration hadoopConf) {
        super(hadoopConf);
    }

    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration hadoopConf)
            throws IOException {
        File target = new File(path.toUri().getPath());
        File directory = target.getParentFile();
        File table = directory.getParentFile();
        File temporary = new File(directory, "." + target.getName() + "." + UUID.randomUUID() + ".tmp");
        try {
            writeActions(temporary, actions, table, hadoopConf.get(EXPECTED));
            if (target.getName().equals(LAST_CHECKPOINT)) {
                syncCheckpoint(directory, temporary);
            }
            // What Hadoop may have written beside a former file of that name would not fit the new one.
            if (overwrite.booleanValue() || !target.exists()) {
                Files.deleteIfExists(new File(directory, "." + target.getName() + ".crc").toPath());
            }
            if (overwrite.booleanValue()) {
                Files.move(temporary.toPath(), target.toPath(), new CopyOption[] {
                    StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING});
            } else {
                Files.createLink(target.toPath(), temporary.toPath());
            }
        } finally {
            Files.deleteIfExists(temporary.toPath());
        }
        sync(directory);
        if (target.getName().equals(FIRST_COMMIT)) {
            sync(table);
            sync(table.getParentFile());
        }
    }

    public Iterator<FileStatus> listFrom(Path path, Configuration hadoopConf) throws IOException {
        FileSystem files = path.getFileSystem(hadoopConf);
        Path parent = files.makeQualified(path.getParent());
        File directory = new File(parent.toUri().getPath());
        String[] names = directory.list();
        if (names == null) {
            throw new FileNotFoundException("No such file or directory: " + parent);
        }
        // Chosen before they are sorted: of a long log, most listings want the last few files.
        List<String> wanted = new ArrayList<String>();
        String start = path.getName();
        for (int place = 0; place < names.length; place++) {
            if (names[place].compareTo(start) >= 0) {
                wanted.add(names[place]);
            }
        }
        Collections.sort(wanted);
        List<FileStatus> found = new ArrayList<FileStatus>();
        for (Iterator<String> each = wanted.iterator(); each.hasNext();) {
            FileStatus status = status(directory, parent, each.next(), files.getDefaultBlockSize(parent));
            if (status != null) {
                found.add(status);
            }
        }
        return found.iterator();
    }

    /** What Delta asks of a file; null if it is gone meanwhile, or is one of Hadoop's own, which it hides. */
    private static FileStatus status(File directory, Path parent, String name, long blockSize)
            throws IOException {
        if (name.startsWith(".") && name.endsWith(".crc")) {
            return null;
        }
        BasicFileAttributes seen;
        try {
            seen = Files.readAttributes(
                new File(directory, name).toPath(), BasicFileAttributes.class, new LinkOption[0]);
        } catch (NoSuchFileException gone) {
            return null;
        }
        return new FileStatus(seen.size(), seen.isDirectory(), 1, blockSize, seen.lastModifiedTime().toMillis(),
            new Path(parent, new Path(null, null, name)));
    }

    /** Delta asks for its checkpoints, which it writes past us: as temporary files, to be renamed, if this is true. */
    public Boolean isPartialWriteVisible(Path path, Configuration hadoopConf) {
        return Boolean.TRUE;
    }

    private static void writeActions(File file, Iterator<String> actions, File table, String expected)
            throws IOException {
        Set<File> directories = new HashSet<File>();
        FileOutputStream stream = new FileOutputStream(file);
        try {
            BufferedWriter writer =
                new BufferedWriter(new OutputStreamWriter(stream, StandardCharsets.UTF_8));
            while (actions.hasNext()) {
                String line = actions.next();
                refuseUnexpected(line, expected);
                syncAdded(line, table, directories);
                writer.write(line);
                writer.write('\n');
            }
            writer.flush();
            stream.getChannel().force(true);
        } finally {
            stream.close();
        }
        for (Iterator<File> each = directories.iterator(); each.hasNext();) {
            sync(each.next());
        }
    }

    private static void syncAdded(String line, File table, Set<File> directories) throws IOException {
        if (line.startsWith("{\"add\":") || line.startsWith("{\"cdc\":")) {
            JsonNode added = JSON.readTree(line).elements().next();
            File file = located(table, added.get("path").asText());
            sync(file);
            File checksum = new File(file.getParentFile(), "." + file.getName() + ".crc");
            if (checksum.exists()) {
                sync(checksum);
            }
            directories.add(file.getParentFile());
        }
    }

    /** Looks at an action, and refuses the commit if it says that it was made from another version. */
    static void refuseUnexpected(String line, String expected) throws IOException {
        if (expected == null || !line.startsWith("{\"commitInfo\":")) {
            return;
        }
        JsonNode info = JSON.readTree(line).get("commitInfo");
        // What Delta may do behind a commit (compaction) is made from that commit.
        JsonNode operation = info.get("operation");
        if (operation == null || !CHECKED.contains(operation.asText())) {
            return;
        }
        JsonNode from = info.get("readVersion");
        if (from == null || !from.asText().equals(expected)) {
            throw new IOException(
                "penstock: a commit from version " + from + " is refused, " + expected + " is expected");
        }
    }

    private static File located(File table, String path) throws IOException {
        Path named = new Path(URI.create(path));
        return named.isAbsolute() ? new File(named.toUri().getPath()) : new File(table, named.toUri().getPath());
    }

    private static void syncCheckpoint(File directory, File pointer) throws IOException {
        long version = JSON.readTree(pointer).get("version").asLong();
        String prefix = String.format("%020d.checkpoint", new Object[] {Long.valueOf(version)});
        String[] names = directory.list();
        for (int place = 0; place < names.length; place++) {
            if (names[place].startsWith(prefix) || names[place].startsWith("." + prefix)) {
                sync(new File(directory, names[place]));
            }
        }
    }

    private static void sync(File file) throws IOException {
        FileChannel channel =
            FileChannel.open(file.toPath(), new OpenOption[] {StandardOpenOption.READ});
        try {
            channel.force(true);
        } finally {
            channel.close();
        }
    }
}
