#!/usr/bin/env bash
# Waits for EC2's notice, two minutes ahead, that it will reclaim this spot instance, and drains the Ray node: its
# workers return unstarted items and journal the replies that arrive until then. cluster/aws.yaml starts this on each worker.
set -u
metadata=${METADATA_URL:-http://169.254.169.254}/latest
fetch() { wget --quiet --timeout 2 --tries 1 --output-document - "$@"; }
until
  token=$(fetch --method PUT --header "X-aws-ec2-metadata-token-ttl-seconds: 60" "$metadata/api/token") &&
    fetch --header "X-aws-ec2-metadata-token: $token" "$metadata/meta-data/spot/instance-action" >/dev/null
do
  sleep "${LOOK_S:-5}"
done
exec ray drain-node --reason DRAIN_NODE_REASON_PREEMPTION --reason-message "EC2 takes the machine back" \
  --deadline-remaining-seconds 100
