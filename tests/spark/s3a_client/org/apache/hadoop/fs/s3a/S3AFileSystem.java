package org.apache.hadoop.fs.s3a;

import java.io.ByteArrayInputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.net.URI;
import java.net.URLDecoder;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PositionedReadable;
import org.apache.hadoop.fs.Seekable;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.fs.s3a.audit.AuditSpanS3A;
import org.apache.hadoop.util.Progressable;
import software.amazon.awssdk.services.s3.model.ListObjectsV2Request;

/**
 * A client that reads an S3 at `fs.s3a.endpoint`, in the place of Hadoop's own: as much of it as Delta's code for
 * `start-after` and a look at a table use. Its signature is none, which an emulator takes. For the bucket
 * `another-client` it is one whose listings Delta can't use.
 */
public class S3AFileSystem extends FileSystem {
    private static final Pattern OBJECT = Pattern.compile(
        "<Key>(.*?)</Key>.*?<LastModified>(.*?)</LastModified>.*?<Size>(\\d+)</Size>", Pattern.DOTALL);
    private static final Pattern MORE =
        Pattern.compile("<NextContinuationToken>(.*?)</NextContinuationToken>", Pattern.DOTALL);
    private static final String SIGNED = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request,"
        + " SignedHeaders=host, Signature=none";

    private final HttpClient http = HttpClient.newHttpClient();
    private URI uri;

    @Override
    public void initialize(URI name, Configuration conf) throws IOException {
        super.initialize(name, conf);
        uri = URI.create(name.getScheme() + "://" + name.getAuthority());
    }

    @Override
    public String getScheme() {
        return "s3a";
    }

    @Override
    public URI getUri() {
        return uri;
    }

    public String getBucket() {
        return uri.getAuthority();
    }

    public Listing getListing() {
        if (getBucket().equals("another-client")) {
            throw new NoSuchMethodError("S3AFileSystem.getListing()");
        }
        return new Listing(this);
    }

    public AuditSpanS3A getActiveAuditSpan() {
        return null;
    }

    public String pathToKey(Path path) {
        return path.toUri().getPath().substring(1);
    }

    List<S3AFileStatus> list(ListObjectsV2Request request) throws IOException {
        String first = "?list-type=2&encoding-type=url&max-keys=" + request.maxKeys + "&prefix="
            + encoded(request.prefix) + (request.startAfter == null ? "" : "&start-after=" + encoded(request.startAfter));
        List<S3AFileStatus> found = new ArrayList<S3AFileStatus>();
        String query = first;
        while (query != null) {
            String page = new String(answer("GET", query).body(), StandardCharsets.UTF_8);
            Matcher each = OBJECT.matcher(page);
            while (each.find()) {
                Path path = new Path(uri + "/" + URLDecoder.decode(each.group(1), StandardCharsets.UTF_8));
                long modified = Instant.parse(each.group(2)).toEpochMilli();
                found.add(new S3AFileStatus(Long.parseLong(each.group(3)), false, modified, path));
            }
            Matcher more = MORE.matcher(page);
            query = more.find() ? first + "&continuation-token=" + encoded(more.group(1)) : null;
        }
        return found;
    }

    @Override
    public FileStatus[] listStatus(Path path) throws IOException {
        ListObjectsV2Request request = new ListObjectsV2Request();
        request.prefix = pathToKey(path) + "/";
        request.maxKeys = S3AUtils.intOption(getConf(), "fs.s3a.paging.maximum", 5000, 1);
        List<S3AFileStatus> found = list(request);
        if (found.isEmpty()) {
            throw new FileNotFoundException(path.toString());
        }
        return found.toArray(new FileStatus[0]);
    }

    @Override
    public FileStatus getFileStatus(Path path) throws IOException {
        HttpResponse<byte[]> head = answer("HEAD", "/" + encoded(pathToKey(path)));
        if (head.statusCode() == 200) {
            long length = head.headers().firstValueAsLong("Content-Length").getAsLong();
            return new S3AFileStatus(length, false, 0, path);
        }
        ListObjectsV2Request below = new ListObjectsV2Request();
        below.prefix = pathToKey(path) + "/";
        below.maxKeys = 1000;
        if (list(below).isEmpty()) {
            throw new FileNotFoundException(path.toString());
        }
        return new S3AFileStatus(0, true, 0, path);
    }

    @Override
    public FSDataInputStream open(Path path, int bufferSize) throws IOException {
        HttpResponse<byte[]> got = answer("GET", "/" + encoded(pathToKey(path)));
        if (got.statusCode() != 200) {
            throw new FileNotFoundException(path.toString());
        }
        return new FSDataInputStream(new Content(got.body()));
    }

    private HttpResponse<byte[]> answer(String method, String what) throws IOException {
        URI place = URI.create(getConf().get("fs.s3a.endpoint") + "/" + getBucket() + what);
        HttpRequest request = HttpRequest.newBuilder(place).header("Authorization", SIGNED)
            .method(method, HttpRequest.BodyPublishers.noBody()).build();
        try {
            return http.send(request, HttpResponse.BodyHandlers.ofByteArray());
        } catch (InterruptedException stopped) {
            throw new IOException(stopped);
        }
    }

    private static String encoded(String text) {
        return URLEncoder.encode(text, StandardCharsets.UTF_8).replace("+", "%20").replace("%2F", "/");
    }

    @Override
    public Path getWorkingDirectory() {
        return new Path(uri + "/");
    }

    @Override
    public void setWorkingDirectory(Path path) {
        throw new UnsupportedOperationException();
    }

    @Override
    public FSDataOutputStream create(Path path, FsPermission permission, boolean overwrite, int bufferSize,
            short replication, long blockSize, Progressable progress) {
        throw new UnsupportedOperationException();
    }

    @Override
    public FSDataOutputStream append(Path path, int bufferSize, Progressable progress) {
        throw new UnsupportedOperationException();
    }

    @Override
    public boolean rename(Path from, Path to) {
        throw new UnsupportedOperationException();
    }

    @Override
    public boolean delete(Path path, boolean recursive) {
        throw new UnsupportedOperationException();
    }

    @Override
    public boolean mkdirs(Path path, FsPermission permission) {
        throw new UnsupportedOperationException();
    }

    private static final class Content extends ByteArrayInputStream implements Seekable, PositionedReadable {
        Content(byte[] content) {
            super(content);
        }

        public void seek(long place) {
            pos = (int) place;
        }

        public long getPos() {
            return pos;
        }

        public boolean seekToNewSource(long target) {
            return false;
        }

        public int read(long place, byte[] into, int offset, int length) {
            if (place >= count) {
                return -1;
            }
            int most = Math.min(length, count - (int) place);
            System.arraycopy(buf, (int) place, into, offset, most);
            return most;
        }

        public void readFully(long place, byte[] into, int offset, int length) throws IOException {
            if (read(place, into, offset, length) < length) {
                throw new IOException("the object ends before");
            }
        }

        public void readFully(long place, byte[] into) throws IOException {
            readFully(place, into, 0, into.length);
        }
    }
}
