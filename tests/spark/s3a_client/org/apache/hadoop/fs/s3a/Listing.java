package org.apache.hadoop.fs.s3a;

import java.io.IOException;
import java.util.Iterator;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.fs.store.audit.AuditSpan;

/** What Delta asks of S3A's listings. */
public class Listing {
    private final S3AFileSystem files;

    Listing(S3AFileSystem files) {
        this.files = files;
    }

    public FileStatusListingIterator createFileStatusListingIterator(
            Path path, S3ListRequest request, PathFilter filter, FileStatusAcceptor acceptor, AuditSpan span)
            throws IOException {
        return new FileStatusListingIterator(files.list(request.request).iterator());
    }

    public interface FileStatusAcceptor {
    }

    public static class AcceptAllButSelfAndS3nDirs implements FileStatusAcceptor {
        public AcceptAllButSelfAndS3nDirs(Path self) {
        }
    }

    public static class FileStatusListingIterator implements RemoteIterator<S3AFileStatus> {
        private final Iterator<S3AFileStatus> found;

        FileStatusListingIterator(Iterator<S3AFileStatus> found) {
            this.found = found;
        }

        public boolean hasNext() {
            return found.hasNext();
        }

        public S3AFileStatus next() {
            return found.next();
        }
    }
}
