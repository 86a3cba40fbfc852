#!/usr/bin/env bash
# Waits for EC2 to say that it takes this spot machine back, two minutes before, and drains its Ray node: workers hand
# back what they hold and write down what comes back meanwhile. Started by cluster/aws.yaml on each worker.
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
