#!/bin/sh
# Makes enforcer.yaml from the chart and its default values. Needs helm (3.18 or later, or 4), by HELM or on the path.
set -eu
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
chart=$here/../helm/enforcer
trap 'rm -f "$here/enforcer.yaml.new"' EXIT
{
    echo '# Made by generate.sh from packaging/helm/enforcer with its default values: change the chart, not this file.'
    echo "# chart-sha256: $("$here/digest.sh")"
    cat "$here/namespace.yaml"
    "${HELM:-helm}" template enforcer "$chart" --namespace enforcer-system --kube-version 1.33.0 --skip-tests
} > "$here/enforcer.yaml.new"
mv "$here/enforcer.yaml.new" "$here/enforcer.yaml"
