# What each may do, and no more. Statements that don't apply are left out.
locals {
  # aws, aws-cn or aws-us-gov: everything here is in one account.
  s3 = "arn:${split(":", var.oidc_provider_arn)[1]}:s3:::"

  changes_arn   = aws_kinesis_stream.changes.arn
  manifests_arn = one(aws_kinesis_stream.manifests[*].arn)
  stream_arns   = compact([local.changes_arn, local.manifests_arn])

  quarantine_objects = var.quarantine == null ? [] : [
    "${local.s3}${join("/", compact([var.quarantine.bucket, trim(var.quarantine.prefix, "/")]))}/*"
  ]
  lake_objects = var.lake == null ? [] : [
    "${local.s3}${join("/", compact([var.lake.bucket, trim(var.lake.prefix, "/")]))}/*"
  ]

  publish = [
    {
      Sid      = "PublishChanges"
      Effect   = "Allow"
      Action   = ["kinesis:PutRecords", "kinesis:DescribeStreamSummary"]
      Resource = [local.changes_arn]
    },
  ]
  publish_manifests = var.marked ? [
    {
      Sid      = "PublishManifests"
      Effect   = "Allow"
      Action   = ["kinesis:PutRecord", "kinesis:DescribeStreamSummary"]
      Resource = [local.manifests_arn]
    },
  ] : []
  encrypt = var.kms_key_arn == null ? [] : [
    {
      Sid      = "Encrypt"
      Effect   = "Allow"
      Action   = ["kms:GenerateDataKey"]
      Resource = [var.kms_key_arn]
    },
  ]
  keep_in_quarantine = var.quarantine == null ? [] : [
    {
      Sid      = "KeepInQuarantine"
      Effect   = "Allow"
      Action   = ["s3:PutObject", "s3:GetObject"]
      Resource = local.quarantine_objects
    },
    # `penstock check` asks whether the bucket is there.
    {
      Sid      = "SeeQuarantine"
      Effect   = "Allow"
      Action   = ["s3:ListBucket"]
      Resource = ["${local.s3}${var.quarantine.bucket}"]
    },
  ]

  read = [
    {
      Sid    = "ReadChanges"
      Effect = "Allow"
      Action = [
        "kinesis:DescribeStreamSummary",
        "kinesis:GetRecords",
        "kinesis:GetShardIterator",
        "kinesis:ListShards",
      ]
      Resource = local.stream_arns
    },
  ]
  decrypt = var.kms_key_arn == null ? [] : [
    {
      Sid      = "Decrypt"
      Effect   = "Allow"
      Action   = ["kms:Decrypt"]
      Resource = [var.kms_key_arn]
    },
  ]
  # A pointer in the stream says where the payload is.
  fetch_from_quarantine = var.quarantine == null ? [] : [
    {
      Sid      = "FetchFromQuarantine"
      Effect   = "Allow"
      Action   = ["s3:GetObject"]
      Resource = local.quarantine_objects
    },
  ]

  keep_lake = var.lake == null ? [] : [
    {
      Sid      = "KeepLake"
      Effect   = "Allow"
      Action   = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
      Resource = local.lake_objects
    },
    # Of the whole bucket: without it an object that isn't there looks like one that is forbidden.
    {
      Sid      = "ListLake"
      Effect   = "Allow"
      Action   = ["s3:ListBucket"]
      Resource = ["${local.s3}${var.lake.bucket}"]
    },
  ]

  # Manifests are read back, and the last one tells where a shape stands.
  keep_shapes_in_streams = length(var.shape_streams) == 0 ? [] : [
    {
      Sid    = "KeepShapesInStreams"
      Effect = "Allow"
      Action = [
        "kinesis:DescribeStreamSummary",
        "kinesis:GetRecords",
        "kinesis:GetShardIterator",
        "kinesis:ListShards",
        "kinesis:PutRecord",
        "kinesis:PutRecords",
      ]
      Resource = var.shape_streams
    },
  ]

  capture_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = concat(local.publish, local.publish_manifests, local.encrypt, local.keep_in_quarantine)
  })
  reader_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = concat(local.read, local.decrypt, local.fetch_from_quarantine)
  })
  shapes_policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      local.keep_lake,
      local.keep_shapes_in_streams,
      length(var.shape_streams) == 0 ? [] : concat(local.encrypt, local.keep_in_quarantine),
      var.shapes_read_stream ? concat(local.read, local.fetch_from_quarantine) : [],
      # Once, whatever it is that they read: IAM refuses two statements of one name.
      var.shapes_read_stream || length(var.shape_streams) > 0 ? local.decrypt : [],
    )
  })
}
