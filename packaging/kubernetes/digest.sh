#!/bin/sh
# The digest of what the manifests are made from, as `sha256sum` prints it: a test recognises by it that they are stale.
set -eu
export LC_ALL=C
cd "$(dirname "$0")/../helm/enforcer"
cat Chart.yaml values.yaml templates/_helpers.tpl templates/*.yaml ../../kubernetes/namespace.yaml | sha256sum | cut -d' ' -f1
