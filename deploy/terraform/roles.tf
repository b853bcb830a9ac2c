locals {
  # arn:aws:iam::<account>:oidc-provider/<issuer>
  oidc_issuer = replace(var.oidc_provider_arn, "/^.*oidc-provider\\//", "")

  has_shapes = var.lake != null || length(var.shape_streams) > 0

  service_accounts = {
    capture = "system:serviceaccount:${var.namespace}:penstock-capture"
    shapes  = "system:serviceaccount:${var.namespace}:penstock-shapes"
  }
  trust = {
    for service, account in local.service_accounts : service => jsonencode({
      Version = "2012-10-17"
      Statement = [{
        Effect    = "Allow"
        Action    = "sts:AssumeRoleWithWebIdentity"
        Principal = { Federated = var.oidc_provider_arn }
        Condition = {
          StringEquals = {
            "${local.oidc_issuer}:aud" = "sts.amazonaws.com"
            "${local.oidc_issuer}:sub" = account
          }
        }
      }]
    })
  }
}

resource "aws_iam_role" "capture" {
  name               = "${var.name}-capture"
  assume_role_policy = local.trust.capture
  tags               = var.tags
}

resource "aws_iam_role_policy" "capture" {
  name   = "publish"
  role   = aws_iam_role.capture.id
  policy = local.capture_policy
}

resource "aws_iam_role" "shapes" {
  count = local.has_shapes ? 1 : 0

  name               = "${var.name}-shapes"
  assume_role_policy = local.trust.shapes
  tags               = var.tags
}

resource "aws_iam_role_policy" "shapes" {
  count = local.has_shapes ? 1 : 0

  name   = "lake"
  role   = aws_iam_role.shapes[0].id
  policy = local.shapes_policy
}

# For roles of other teams: attach it to them, or let them take on the role.
resource "aws_iam_policy" "reader" {
  name   = "${var.name}-reader"
  policy = local.reader_policy
  tags   = var.tags
}

resource "aws_iam_role" "reader" {
  count = length(var.reader_principals) == 0 ? 0 : 1

  name = "${var.name}-reader"
  tags = var.tags
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { AWS = var.reader_principals }
    }]
  })
}

resource "aws_iam_role_policy_attachment" "reader" {
  count = length(var.reader_principals) == 0 ? 0 : 1

  role       = aws_iam_role.reader[0].name
  policy_arn = aws_iam_policy.reader.arn
}
