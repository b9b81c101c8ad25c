# A bucket, an account that may read and write it, and a TPU that Compute Engine creates and that runs as that account:
# v5p, v6e or TPU7x, one machine, or a slice of several. ../main.tf is for the TPU API.
#
#   terraform init
#   terraform apply -var project=PROJECT -var zone=us-central1-c -var name=mae -var machine_type=tpu7x-standard-4t \
#     -var image_family=ubuntu-accel-2404-amd64-tpu-tpu7x -var topology=2x2x4 -var machines=4
#
# `dataprep tpu plan TYPE` shows the machine type and the number of machines. What is here costs money until
# `terraform destroy`; a bucket with objects in it is not destroyed. It is not tested on a TPU.

terraform {
  required_version = ">= 1.5"
  required_providers {
    google-beta = {
      source  = "hashicorp/google-beta"
      version = ">= 7.0"
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

variable "machine_type" {
  type        = string
  description = "Machine type, such as ct6e-standard-8t or tpu7x-standard-4t."
}

variable "image_family" {
  type    = string
  default = "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
}

variable "machines" {
  type        = number
  description = "Number of machines of the slice."
  default     = 1
}

variable "topology" {
  type        = string
  description = "Topology of a slice of several machines, such as 2x2x4; empty for one machine."
  default     = ""
}

variable "provisioning_model" {
  type        = string
  description = "STANDARD, SPOT or FLEX_START."
  default     = "STANDARD"
}

variable "max_run_s" {
  type        = number
  description = "Seconds after which a FLEX_START machine is deleted, 604800 at most."
  default     = 604800
}

variable "startup_script" {
  type        = string
  description = "File with a start-up script, such as the one that `dataprep tpu create --dry-run` shows; empty: packages alone."
  default     = ""
}

locals {
  region   = join("-", slice(split("-", var.zone), 0, 2))
  labels   = { dataprep-tpu = var.name }
  script   = var.startup_script == "" ? "apt-get update && apt-get install -y gcc libjpeg-dev python3-venv" : file(var.startup_script)
  is_slice = var.machines > 1
  is_flex  = var.provisioning_model == "FLEX_START"
  is_spot  = var.provisioning_model == "SPOT"
}

provider "google-beta" {
  project = var.project
  zone    = var.zone
}

resource "google_storage_bucket" "data" {
  provider                    = google-beta
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
  provider     = google-beta
  account_id   = "${var.name}-trainer"
  display_name = "Machines of the TPU ${var.name}"
}

# This bucket and no other: a training that is pointed at another private bucket is refused, not billed.
resource "google_storage_bucket_iam_member" "rights" {
  provider = google-beta
  for_each = toset(["roles/storage.objectAdmin", "roles/storage.legacyBucketReader"])
  bucket   = google_storage_bucket.data.name
  role     = each.value
  member   = google_service_account.trainer.member
}

# Places the machines of a slice together.
resource "google_compute_resource_policy" "slice" {
  provider = google-beta
  count    = local.is_slice ? 1 : 0
  name     = "${var.name}-policy"
  region   = local.region

  workload_policy {
    type                 = "HIGH_THROUGHPUT"
    accelerator_topology = var.topology
  }

  lifecycle {
    precondition {
      condition     = var.topology != ""
      error_message = "A slice of several machines needs its topology, such as 2x2x4."
    }
  }
}

resource "google_compute_region_instance_template" "machine" {
  provider     = google-beta
  name         = "${var.name}-template"
  region       = local.region
  machine_type = var.machine_type
  labels       = local.labels
  metadata     = { startup-script = local.script }

  disk {
    boot         = true
    source_image = "projects/ubuntu-os-accelerator-images/global/images/family/${var.image_family}"
    disk_size_gb = 200
  }

  network_interface {
    network = "default"
    access_config {}
  }

  # A TPU cannot move to another host.
  scheduling {
    on_host_maintenance         = "TERMINATE"
    automatic_restart           = !(local.is_spot || local.is_flex)
    preemptible                 = local.is_spot
    provisioning_model          = var.provisioning_model
    instance_termination_action = local.is_flex ? "DELETE" : local.is_spot ? "STOP" : null

    dynamic "max_run_duration" {
      for_each = local.is_flex ? [var.max_run_s] : []
      content {
        seconds = max_run_duration.value
      }
    }
  }

  service_account {
    email  = google_service_account.trainer.email
    scopes = ["https://www.googleapis.com/auth/cloud-platform"]
  }

  depends_on = [google_storage_bucket_iam_member.rights]
}

# All machines of a slice are created, or none.
resource "google_compute_instance_group_manager" "machines" {
  provider           = google-beta
  name               = var.name
  zone               = var.zone
  base_instance_name = var.name
  target_size        = var.machines

  version {
    instance_template = google_compute_region_instance_template.machine.id
  }

  dynamic "target_size_policy" {
    for_each = local.is_slice ? ["BULK"] : []
    content {
      mode = target_size_policy.value
    }
  }

  dynamic "resource_policies" {
    for_each = google_compute_resource_policy.slice
    content {
      workload_policy = resource_policies.value.id
    }
  }

  instance_lifecycle_policy {
    default_action_on_failure = "DO_NOTHING"
  }
}

output "bucket" {
  value = google_storage_bucket.data.url
}

output "next" {
  value = "dataprep tpu setup ${var.name} --zone ${var.zone} --project ${var.project} --api compute-engine --code ."
}
