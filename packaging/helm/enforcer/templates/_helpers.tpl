{{/* The chart's name, as in labels. */}}
{{- define "enforcer.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* The name of what the chart makes: `enforcer` for a release of that name. */}}
{{- define "enforcer.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "enforcer.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "enforcer.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ include "enforcer.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* The labels that select the pods of one track. */}}
{{- define "enforcer.selector" -}}
app.kubernetes.io/name: {{ include "enforcer.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
enforcer.dev/track: {{ .track }}
{{- end -}}

{{/*
The tracks: `stable` everywhere, `canary` on the nodes with its label. Each has a name, a configuration, and an image. As
YAML, for fromYaml.
*/}}
{{- define "enforcer.tracks" -}}
{{- $name := include "enforcer.fullname" . -}}
tracks:
- track: stable
  name: {{ $name }}
  tag: {{ .Values.image.tag | quote }}
  digest: {{ .Values.image.digest | quote }}
  config: {{ .Values.config | toJson }}
{{- if .Values.canary.enabled }}
- track: canary
  name: {{ $name }}-canary
  tag: {{ .Values.canary.image.tag | default .Values.image.tag | quote }}
  {{- /* The canary's own tag would lose against a digest of the stable image. */}}
  digest: {{ .Values.canary.image.digest | default (ternary "" .Values.image.digest (ne .Values.canary.image.tag "")) | quote }}
  config: {{ mergeOverwrite (deepCopy .Values.config) .Values.canary.config | toJson }}
{{- end }}
{{- end -}}

{{/* The configuration file of a track, with what the chart itself decides. */}}
{{- define "enforcer.config" -}}
{{- $config := dict "apiVersion" "enforcer.dev/v1alpha1" "kind" "EnforcerConfiguration" -}}
{{- /* Without a folder of manifests the source `static` would count as down. This one is empty. */ -}}
{{- $_ := set $config "staticPodPath" "/etc/enforcer-pods" -}}
{{- with .root.Values.metrics -}}
{{- if and .enabled (eq .by "proxy") -}}
{{- $_ := set $config "metricsListen" "127.0.0.1:9464" -}}
{{- else if .enabled -}}
{{- $_ := set $config "metricsListen" (printf "%s:%d" .address (int .port)) -}}
{{- $tls := dict "certFile" "/etc/enforcer-metrics/tls/tls.crt" "keyFile" "/etc/enforcer-metrics/tls/tls.key" -}}
{{- if .tls.clientCertificates -}}
{{- $_ := set $tls "clientCAFile" "/etc/enforcer-metrics/tls/ca.crt" -}}
{{- end -}}
{{- $_ := set $config "metricsTLS" $tls -}}
{{- if .tokenSecret.name -}}
{{- $_ := set $config "metricsTokenFile" (printf "/etc/enforcer-metrics/token/%s" .tokenSecret.key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- /* The daemon must look where the pod has it mounted. */ -}}
{{- if or .root.Values.mounts.podsAPI .root.Values.mounts.kubeletPki -}}
{{- $_ := set $config "kubeletRootDir" (include "enforcer.kubeletRootDir" .) -}}
{{- end -}}
{{- merge $config .config | toYaml -}}
{{- end -}}

{{/* The kubelet's root directory, of which the pod has parts mounted. */}}
{{- define "enforcer.kubeletRootDir" -}}
{{- $usual := eq .root.Values.runtime "k0s" | ternary "/var/lib/k0s/kubelet" "/var/lib/kubelet" -}}
{{- default $usual .config.kubeletRootDir -}}
{{- end -}}

{{/*
The part of the configuration file whose change restarts the daemons. A daemon that follows its file needs that only for
the fields that are fixed while it runs; a test holds the list to the daemon's.
*/}}
{{- define "enforcer.fixed" -}}
{{- $file := include "enforcer.config" . -}}
{{- $config := fromYaml $file -}}
{{- if eq (default "signal" $config.configReload) "auto" -}}
{{- pick $config "mode" "ownership" "stateDir" "runDir" "observeSocketOwner" "observeSocketGroup" "adminSocketOwner" "adminSocketGroup" "staticPodPath" "criSocket" "podSource" "kubeconfig" "kubeletRootDir" "kubeletPort" "nodeName" "apiAction" "onPdb" "barePods" "daemonSetPods" "nodeCondition" "nodeTaint" "metricsListen" "metricsHosts" "metricsTLS" "metricsTokenFile" "configReload" "memoryAvailableSource" "evictionScheduling" "cgroupRoot" "cgroupDriver" "reservedSystemCPUs" "cpuManagerPolicy" "cpuManagerPolicyOptions" | toYaml -}}
{{- else -}}
{{- $file -}}
{{- end -}}
{{- end -}}

{{/*
The features of a configuration that need a right at the API server, by the names of their roles. As words. That of the node
does not depend on the mode: a daemon that leaves `enforce` removes what it has set.
*/}}
{{- define "enforcer.features" -}}
{{- $config := .config -}}
{{- $special := list (default "killOnly" $config.barePods) (default "killOnly" $config.daemonSetPods) -}}
{{- $requests := or (ne (default "evict" $config.apiAction) "none") (without $special "killOnly") -}}
{{- $marks := or $config.nodeCondition (ne (default "none" $config.nodeTaint) "none") -}}
{{- if has (default "auto" $config.podSource) (list "auto" "kubelet" "apiServer") }} specs{{ end -}}
{{- if and (eq $config.mode "enforce") $requests }} evictions{{ end -}}
{{- if or $marks .root.Values.rbac.nodeCleanup }} node{{ end -}}
{{- if dig "kubernetes" "enabled" false (default dict $config.sinks) }} events{{ end -}}
{{- end -}}

{{/* The secret key with the token that Prometheus shows, as JSON; empty if it shows none. For `.Values.metrics`. */}}
{{- define "enforcer.prometheusToken" -}}
{{- if .podMonitor.tokenSecret.name -}}
{{- .podMonitor.tokenSecret | toJson -}}
{{- else if and (eq .by "daemon") .tokenSecret.name -}}
{{- .tokenSecret | toJson -}}
{{- end -}}
{{- end -}}

{{/* What the chart refuses, beyond its schema. */}}
{{- define "enforcer.check" -}}
{{- range (fromYaml (include "enforcer.tracks" .)).tracks -}}
{{- if and .config.metricsListen (not (hasPrefix "127." .config.metricsListen)) (not (hasPrefix "[::1]" .config.metricsListen)) -}}
{{- if not (and .config.metricsTLS (or .config.metricsTokenFile .config.metricsTLS.clientCAFile)) -}}
{{- fail (printf "config.metricsListen: %s: beyond loopback it needs TLS, and a token or client certificates; use metrics.enabled" .config.metricsListen) -}}
{{- end -}}
{{- if and $.Values.hostNetwork (not $.Values.metrics.exposeOnHostNetwork) -}}
{{- fail "metrics.exposeOnHostNetwork: with hostNetwork the port of config.metricsListen is one of the node; set it to true if that is meant" -}}
{{- end -}}
{{- end -}}
{{- if and (eq (default "auto" .config.podSource) "kubelet") (not $.Values.hostNetwork) -}}
{{- fail "config.podSource: kubelet: that source is at 127.0.0.1 of the node; set hostNetwork: true, or use apiServer or podsAPI" -}}
{{- end -}}
{{- if and (eq (default "auto" .config.podSource) "podsAPI") (not $.Values.mounts.podsAPI) -}}
{{- fail "config.podSource: podsAPI: set mounts.podsAPI: true" -}}
{{- end -}}
{{- if .config.preKillHook -}}
{{- fail "config.preKillHook: the image has no other program than the daemon; build one with it, and write the DaemonSet yourself" -}}
{{- end -}}
{{- end -}}
{{- with .Values.metrics -}}
{{- if and .enabled (not .tls.secretName) -}}
{{- fail "metrics.tls.secretName: metrics are served to the network with TLS only; name the secret of a certificate" -}}
{{- end -}}
{{- if and .enabled (eq .by "daemon") (not .tokenSecret.name) (not .tls.clientCertificates) -}}
{{- fail "metrics.tokenSecret.name: metrics are served to those alone who show a token or a client certificate; name the secret of the tokens, or set metrics.tls.clientCertificates" -}}
{{- end -}}
{{- if and .enabled $.Values.hostNetwork (not .exposeOnHostNetwork) -}}
{{- fail "metrics.exposeOnHostNetwork: with hostNetwork the port is one of the node; set it to true if that is meant" -}}
{{- end -}}
{{- if and .podMonitor.enabled (not .enabled) -}}
{{- fail "metrics.podMonitor.enabled: there is nothing to scrape without metrics.enabled" -}}
{{- end -}}
{{- if and .podMonitor.enabled (not .podMonitor.caSecret.name) -}}
{{- fail "metrics.podMonitor.caSecret.name: Prometheus verifies the certificate; name the secret of the authority" -}}
{{- end -}}
{{- if and .podMonitor.enabled (not .podMonitor.clientSecret.name) (not (include "enforcer.prometheusToken" .)) -}}
{{- fail "metrics.podMonitor: tokenSecret.name or clientSecret.name is needed: Prometheus shows a token or a client certificate" -}}
{{- end -}}
{{- if and .podMonitor.enabled .podMonitor.clientSecret.name (not .tls.clientCertificates) -}}
{{- fail "metrics.tls.clientCertificates: podMonitor.clientSecret has no use without it" -}}
{{- end -}}
{{- end -}}
{{- end -}}
