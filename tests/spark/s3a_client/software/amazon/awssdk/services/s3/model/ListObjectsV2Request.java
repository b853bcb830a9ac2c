package software.amazon.awssdk.services.s3.model;

/** What Delta asks of the request of AWS's SDK. */
public final class ListObjectsV2Request {
    public String bucket;
    public String prefix;
    public String startAfter;
    public int maxKeys;

    public static Builder builder() {
        return new Building();
    }

    public interface Builder {
        Builder bucket(String bucket);

        Builder maxKeys(Integer maxKeys);

        Builder prefix(String prefix);

        Builder startAfter(String startAfter);

        Object build();
    }

    private static final class Building implements Builder {
        private final ListObjectsV2Request request = new ListObjectsV2Request();

        public Builder bucket(String bucket) {
            request.bucket = bucket;
            return this;
        }

        public Builder maxKeys(Integer maxKeys) {
            request.maxKeys = maxKeys.intValue();
            return this;
        }

        public Builder prefix(String prefix) {
            request.prefix = prefix;
            return this;
        }

        public Builder startAfter(String startAfter) {
            request.startAfter = startAfter;
            return this;
        }

        public Object build() {
            return request;
        }
    }
}
