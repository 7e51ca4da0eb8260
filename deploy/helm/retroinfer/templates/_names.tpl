{{/* Names, labels and images. */}}

{{- define "retroinfer.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "retroinfer.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains (include "retroinfer.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "retroinfer.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "retroinfer.selector" -}}
app.kubernetes.io/component: server
app.kubernetes.io/name: {{ include "retroinfer.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "retroinfer.labels" -}}
{{ include "retroinfer.selector" . }}
app.kubernetes.io/part-of: retroinfer
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* usage: include "retroinfer.image" (list . image suffix): the suffix is for the tag that is not given. */}}
{{- define "retroinfer.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default (printf "%s%s" $root.Chart.AppVersion (index . 2)) $image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The claim of the cache: the chart's own has the name of the other objects. */}}
{{- define "retroinfer.cacheClaim" -}}
{{- default (printf "%s-cache" (include "retroinfer.fullname" .)) .Values.cache.existingClaim -}}
{{- end -}}

{{/* What a volume of the cache must be, in a claim or for each pod. */}}
{{- define "retroinfer.cacheVolume" -}}
accessModes: [ReadWriteOnce]
{{- with .Values.cache.storageClass }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests:
    storage: {{ int64 .Values.cache.volumeGiB }}Gi
{{- end -}}
