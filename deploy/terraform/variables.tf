variable "name" {
  description = "Name of the stream, and the beginning of every role's name."
  type        = string
  default     = "penstock"

  validation {
    condition     = can(regex("^[a-zA-Z0-9_.-]{1,40}$", var.name))
    error_message = "1 to 40 of a-z, A-Z, 0-9, _, . and -."
  }
}

variable "shards" {
  description = "Shards of the stream; null for an on-demand stream, which AWS scales by itself."
  type        = number
  default     = null
}

variable "retention_hours" {
  description = "How long records are kept: readers that are down for longer need new snapshots."
  type        = number
  default     = 168
}

variable "kms_key_arn" {
  description = "A key of yours that encrypts the streams; null for AWS's own."
  type        = string
  default     = null
}

variable "marked" {
  description = "Whether capture runs with KINESIS_MARKED_STREAM=true: then manifests get a stream of their own, with one shard."
  type        = bool
  default     = false
}

variable "quarantine" {
  description = "Where QUARANTINE_URL points to, if that is a bucket."
  type = object({
    bucket = string
    prefix = optional(string, "")
  })
  default = null
}

variable "lake" {
  description = "The bucket and prefix of the shapes file's storage; without it and `shape_streams` there is no role for shapes."
  type = object({
    bucket = string
    prefix = optional(string, "")
  })
  default = null
}

variable "shape_streams" {
  description = "ARNs of the streams that are a shapes file's storage (kinesis://…), those of their manifests included; `lake` is then where its registry is."
  type        = list(string)
  default     = []
}

variable "shapes_read_stream" {
  description = "Whether shapes read the stream instead of a slot of their own."
  type        = bool
  default     = false
}

variable "oidc_provider_arn" {
  description = "The cluster's OIDC provider: pods take the roles on by their service account (IRSA)."
  type        = string
}

variable "namespace" {
  description = "The namespace in which deploy/kubernetes runs."
  type        = string
  default     = "penstock"
}

variable "reader_principals" {
  description = "ARNs of the roles that may take on the readers' role."
  type        = list(string)
  default     = []
}

variable "tags" {
  description = "Tags of everything that is made here."
  type        = map(string)
  default     = {}
}

variable "postgres" {
  description = "What the SQL is made of: its database, the roles, the schemas whose tables shapes copy, and the server."
  type = object({
    database               = string
    capture_role           = optional(string, "penstock_capture")
    shapes_role            = optional(string, "penstock_shapes")
    schemas                = optional(list(string), ["public"])
    table_owner            = optional(string)
    rds                    = optional(bool, true)
    max_slot_wal_keep_size = optional(string)
  })
}
