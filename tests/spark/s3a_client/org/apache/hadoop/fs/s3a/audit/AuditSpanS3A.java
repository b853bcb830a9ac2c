package org.apache.hadoop.fs.s3a.audit;

import org.apache.hadoop.fs.store.audit.AuditSpan;

/** Nobody audits. */
public interface AuditSpanS3A extends AuditSpan {
}
