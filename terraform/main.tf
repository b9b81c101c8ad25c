# A bucket, an account that may read and write it and write logs and metrics, a TPU of the TPU API that runs as that
# account, and a dashboard.
#
#   terraform init
#   terraform apply -var project=PROJECT -var zone=us-central2-b -var name=mae -var accelerator_type=v4-32
#
# `dataprep tpu setup`, `run` and the rest then take the TPU by its name. What is here costs money until
# `terraform destroy`; a bucket with objects in it is not destroyed. It is not tested on a TPU.

terraform {
  required_version = ">= 1.5"
  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 6.0"
    }
    google-beta = {
      source  = "hashicorp/google-beta"
      version = ">= 6.0"
    }
  }
}

variable "project" {
  type = string
}

variable "zone" {
  type        = string
  description = "Zone of the TPU; the bucket is made in its region, where reading it costs no transfer."
}

variable "name" {
  type        = string
  description = "Name of the TPU, after which the bucket and the account are named; at most 22 characters."
}

variable "accelerator_type" {
  type        = string
  description = "Accelerator type, such as v4-32; `dataprep tpu plan TYPE` explains it."
}

variable "runtime_version" {
  type        = string
  description = "Software of the workers; the command that `dataprep tpu plan TYPE` shows has the one for the type as --version."
  default     = "tpu-ubuntu2204-base"
}

variable "spot" {
  type    = bool
  default = false
}

variable "startup_script" {
  type        = string
  description = "File with a start-up script, such as the one that `dataprep tpu create --dry-run` shows; empty: packages alone."
  default     = ""
}

locals {
  region = join("-", slice(split("-", var.zone), 0, 2))
  labels = { dataprep-tpu = var.name }
  script = var.startup_script == "" ? "apt-get update && apt-get install -y gcc libjpeg-dev python3-venv" : file(var.startup_script)
}

provider "google" {
  project = var.project
  zone    = var.zone
}

provider "google-beta" {
  project = var.project
  zone    = var.zone
}

resource "google_storage_bucket" "data" {
  name                        = "${var.project}-${var.name}"
  location                    = upper(local.region)
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  labels                      = local.labels

  # Parts of unfinished uploads cost as much as objects.
  lifecycle_rule {
    action {
      type = "AbortIncompleteMultipartUpload"
    }
    condition {
      age = 7
    }
  }
}

resource "google_service_account" "trainer" {
  account_id   = "${var.name}-trainer"
  display_name = "Workers of the TPU ${var.name}"
}

# This bucket and no other: a training that is pointed at another private bucket is refused, not billed.
resource "google_storage_bucket_iam_member" "objects" {
  bucket = google_storage_bucket.data.name
  role   = "roles/storage.objectAdmin"
  member = google_service_account.trainer.member
}

# With it `dataprep check-region` sees the bucket's location, class and Autoclass.
resource "google_storage_bucket_iam_member" "location" {
  bucket = google_storage_bucket.data.name
  role   = "roles/storage.legacyBucketReader"
  member = google_service_account.trainer.member
}

resource "google_project_iam_member" "logs_and_metrics" {
  for_each = toset(["roles/logging.logWriter", "roles/monitoring.metricWriter"])
  project  = var.project
  role     = each.value
  member   = google_service_account.trainer.member
}

resource "google_tpu_v2_vm" "tpu" {
  provider         = google-beta
  name             = var.name
  zone             = var.zone
  accelerator_type = var.accelerator_type
  runtime_version  = var.runtime_version
  labels           = local.labels
  metadata         = { startup-script = local.script }

  network_config {
    enable_external_ips = true
  }

  scheduling_config {
    spot = var.spot
  }

  service_account {
    email = google_service_account.trainer.email
    scope = ["https://www.googleapis.com/auth/cloud-platform"]
  }

  depends_on = [google_storage_bucket_iam_member.objects]
}

resource "google_monitoring_dashboard" "training" {
  dashboard_json = templatefile("${path.module}/dashboard.json", { name = var.name, bucket = google_storage_bucket.data.name })
}

output "bucket" {
  value = google_storage_bucket.data.url
}

output "next" {
  value = "dataprep tpu setup ${var.name} --zone ${var.zone} --project ${var.project} --code ."
}
