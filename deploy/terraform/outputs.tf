output "stream" {
  description = "KINESIS_STREAM."
  value       = aws_kinesis_stream.changes.name
}

output "marks_stream" {
  description = "KINESIS_MARKS_STREAM; null unless `marked`."
  value       = one(aws_kinesis_stream.manifests[*].name)
}

output "capture_role_arn" {
  description = "For the annotation eks.amazonaws.com/role-arn of the service account penstock-capture."
  value       = aws_iam_role.capture.arn
}

output "shapes_role_arn" {
  description = "The same for penstock-shapes; null without a lake and without streams as storage."
  value       = one(aws_iam_role.shapes[*].arn)
}

output "reader_policy_arn" {
  description = "For roles that read the stream."
  value       = aws_iam_policy.reader.arn
}

output "policies" {
  description = "The three policies as JSON, to be looked at."
  value = {
    capture = local.capture_policy
    reader  = local.reader_policy
    shapes  = local.shapes_policy
  }
}

output "postgres_sql" {
  description = "To be run with psql by a superuser (RDS: the master user), in the database itself: roles, rights, settings."
  value       = templatefile("${path.module}/postgres.sql.tftpl", var.postgres)
}

output "postgres_parameters" {
  description = "For the server's parameter group on RDS and Aurora, where ALTER SYSTEM isn't allowed; the first needs a restart."
  value = merge(
    { "rds.logical_replication" = "1" },
    var.postgres.max_slot_wal_keep_size == null ? {} : { max_slot_wal_keep_size = var.postgres.max_slot_wal_keep_size },
  )
}
