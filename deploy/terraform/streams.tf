locals {
  # A record's key decides its shard: an on-demand stream must not be switched to RecordDistributionStrategy=AUTO.
  on_demand = var.shards == null
}

resource "aws_kinesis_stream" "changes" {
  name             = var.name
  shard_count      = var.shards
  retention_period = var.retention_hours
  encryption_type  = "KMS"
  kms_key_id       = coalesce(var.kms_key_arn, "alias/aws/kinesis")
  tags             = var.tags

  stream_mode_details {
    stream_mode = local.on_demand ? "ON_DEMAND" : "PROVISIONED"
  }
}

# Finding manifests costs little in a stream of one shard, however many the other has.
resource "aws_kinesis_stream" "manifests" {
  count = var.marked ? 1 : 0

  name             = "${var.name}-manifests"
  shard_count      = 1
  retention_period = var.retention_hours
  encryption_type  = "KMS"
  kms_key_id       = coalesce(var.kms_key_arn, "alias/aws/kinesis")
  tags             = var.tags

  stream_mode_details {
    stream_mode = "PROVISIONED"
  }
}
