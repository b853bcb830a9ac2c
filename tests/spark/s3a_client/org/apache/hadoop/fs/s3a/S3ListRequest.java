package org.apache.hadoop.fs.s3a;

import software.amazon.awssdk.services.s3.model.ListObjectsV2Request;

/** What Delta asks of S3A's own name for a request. */
public final class S3ListRequest {
    final ListObjectsV2Request request;

    private S3ListRequest(ListObjectsV2Request request) {
        this.request = request;
    }

    public static S3ListRequest v2(ListObjectsV2Request request) {
        return new S3ListRequest(request);
    }
}
