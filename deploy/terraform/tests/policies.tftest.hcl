mock_provider "aws" {
  mock_resource "aws_kinesis_stream" {
    defaults = { arn = "arn:aws:kinesis:eu-west-1:123456789012:stream/penstock" }
  }
  mock_resource "aws_iam_policy" {
    defaults = { arn = "arn:aws:iam::123456789012:policy/penstock-reader" }
  }
}

variables {
  oidc_provider_arn = "arn:aws:iam::123456789012:oidc-provider/oidc.eks.eu-west-1.amazonaws.com/id/0123"
  postgres          = { database = "shop" }
}

run "the_least" {
  assert {
    condition = jsondecode(output.policies.capture).Statement == [{
      Sid      = "PublishChanges"
      Effect   = "Allow"
      Action   = ["kinesis:PutRecords", "kinesis:DescribeStreamSummary"]
      Resource = ["arn:aws:kinesis:eu-west-1:123456789012:stream/penstock"]
    }]
    error_message = "capture may put records into its stream, and nothing else"
  }
  assert {
    condition     = length(aws_iam_role.shapes) == 0 && length(aws_iam_role.reader) == 0 && length(aws_kinesis_stream.manifests) == 0
    error_message = "what was not asked for is not made"
  }
  assert {
    condition     = aws_kinesis_stream.changes.stream_mode_details[0].stream_mode == "ON_DEMAND"
    error_message = "without a number of shards the stream is on demand"
  }
  assert {
    condition     = strcontains(aws_iam_role.capture.assume_role_policy, "oidc.eks.eu-west-1.amazonaws.com/id/0123:sub\":\"system:serviceaccount:penstock:penstock-capture\"")
    error_message = "only the pods of capture take on its role"
  }
}

run "everything" {
  variables {
    shards             = 4
    marked             = true
    kms_key_arn        = "arn:aws:kms:eu-west-1:123456789012:key/1"
    quarantine         = { bucket = "kept", prefix = "/shop/" }
    lake               = { bucket = "lake" }
    shapes_read_stream = true
    reader_principals  = ["arn:aws:iam::123456789012:role/analysts"]
  }
  assert {
    condition     = [for each in jsondecode(output.policies.capture).Statement : each.Sid] == ["PublishChanges", "PublishManifests", "Encrypt", "KeepInQuarantine", "SeeQuarantine"]
    error_message = "capture's statements"
  }
  assert {
    condition     = [for each in jsondecode(output.policies.capture).Statement : each.Resource if each.Sid == "KeepInQuarantine"] == [["arn:aws:s3:::kept/shop/*"]]
    error_message = "the prefix of the quarantine, whatever slashes it has"
  }
  assert {
    condition     = [for each in jsondecode(output.policies.shapes).Statement : each.Sid] == ["KeepLake", "ListLake", "ReadChanges", "FetchFromQuarantine", "Decrypt"]
    error_message = "shapes' statements"
  }
  assert {
    condition     = alltrue([for each in jsondecode(output.policies.reader).Statement : alltrue([for action in each.Action : !can(regex("Put|Delete|\\*", action))])])
    error_message = "readers write nothing"
  }
  assert {
    condition     = aws_kinesis_stream.changes.shard_count == 4 && output.marks_stream == "penstock-manifests"
    error_message = "the streams"
  }
}

run "a_stream_as_storage" {
  variables {
    shape_streams = ["arn:aws:kinesis:eu-west-1:123456789012:stream/shop-shapes"]
    quarantine    = { bucket = "kept" }
  }
  assert {
    condition     = [for each in jsondecode(output.policies.shapes).Statement : each.Sid] == ["KeepShapesInStreams", "KeepInQuarantine", "SeeQuarantine"]
    error_message = "shapes may write their own stream, and what no record of it can hold"
  }
  assert {
    condition     = jsondecode(output.policies.shapes).Statement[0].Resource == ["arn:aws:kinesis:eu-west-1:123456789012:stream/shop-shapes"] && length(aws_iam_role.shapes) == 1
    error_message = "that stream only, by a role"
  }
}

run "an_encrypted_stream_as_storage" {
  variables {
    kms_key_arn   = "arn:aws:kms:eu-west-1:123456789012:key/1"
    shape_streams = ["arn:aws:kinesis:eu-west-1:123456789012:stream/shop-shapes"]
  }
  assert {
    condition     = [for each in jsondecode(output.policies.shapes).Statement : each.Sid] == ["KeepShapesInStreams", "Encrypt", "Decrypt"]
    error_message = "shapes write and read back their own stream, with its key"
  }
  assert {
    condition     = [for each in jsondecode(output.policies.shapes).Statement : each.Action if each.Sid == "Encrypt" || each.Sid == "Decrypt"] == [["kms:GenerateDataKey"], ["kms:Decrypt"]]
    error_message = "both halves of the key"
  }
}

run "an_encrypted_stream_as_storage_and_source" {
  variables {
    kms_key_arn        = "arn:aws:kms:eu-west-1:123456789012:key/1"
    quarantine         = { bucket = "kept" }
    shape_streams      = ["arn:aws:kinesis:eu-west-1:123456789012:stream/shop-shapes"]
    shapes_read_stream = true
  }
  assert {
    condition     = [for each in jsondecode(output.policies.shapes).Statement : each.Sid] == ["KeepShapesInStreams", "Encrypt", "KeepInQuarantine", "SeeQuarantine", "ReadChanges", "FetchFromQuarantine", "Decrypt"]
    error_message = "each statement once: IAM refuses two of one name"
  }
}
