{{/* What follows from values: settings, options, limits. Sizes are those of docs/operate/operations.md, "Sizes". */}}

{{/* Lines of a settings file in TOML, where strings, lists and numbers are as JSON has them. */}}
{{- define "retroinfer.settings" -}}
{{- range $name, $value := . }}
{{ $name }} = {{ toJson $value }}
{{- end }}
{{- end -}}

{{/* The same as a list of options. */}}
{{- define "retroinfer.options" -}}
{{- range $name, $value := . }}
{{- if kindIs "string" $value }}
- {{ printf "--%s=%s" $name $value | quote }}
{{- else if kindIs "slice" $value }}
- {{ printf "--%s=%s" $name (join "," $value) | quote }}
{{- else }}
- {{ printf "--%s=%s" $name (toJson $value) | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "retroinfer.workerSettings" -}}
# Settings of gpu_worker: options of `gpu_worker --help` without the dashes.
model = "/models/model"
{{- if .Values.model.draft }}
draft-model = "/models/model/{{ .Values.model.draft }}"
speculation = "auto"
{{- end }}
{{- if eq .Values.device "cuda" }}
device = "cuda"
gpu-memory-utilization = {{ .Values.worker.gpuMemoryUtilization }}
{{- if gt (int .Values.worker.gpus.count) 1 }}
tensor-parallel = {{ int .Values.worker.gpus.count }}
{{- end }}
{{- else }}
device = "cpu"
# Memory besides the arena; the container's limit follows from it.
memory = "{{ int64 .Values.worker.memoryGiB }}GiB"
{{- end }}
# The second address is for probes: plain text inside the pod, whatever TLS is outside.
listen = ["0.0.0.0:50051", "unix:/run/retroinfer/generation.sock"]
socket-dir = "/run/retroinfer/sockets"
metrics-address = "0.0.0.0:9401"
# Answers may go on for so long after the pod was told to end; terminationGracePeriodSeconds follows from it.
drain-timeout = "{{ int64 .Values.drainSeconds }}s"
{{- include "retroinfer.settings" .Values.worker.settings }}
{{ end -}}

{{- define "retroinfer.storeSettings" -}}
# Settings of kv_store_service: options of `kv_store_service --help` without the dashes.
socket-dir = "/run/retroinfer/sockets"
metrics-address = "0.0.0.0:9402"
# Shared memory for the KV of long contexts. It is charged to this container: the limit follows from it.
arena-bytes = "{{ int64 .Values.store.arenaGiB }}GiB"
# A folder that the service makes itself: the root of a volume is not private enough.
cache-dir = "/var/cache/retroinfer/contexts"
cache-bytes = "{{ int64 .Values.cache.contextsGiB }}GiB"
{{- include "retroinfer.settings" .Values.store.settings }}
{{ end -}}

{{- define "retroinfer.workerMemory" -}}
{{- if eq .Values.device "cuda" -}}
{{ int64 .Values.worker.hostMemoryGiB }}Gi
{{- else -}}
{{ mul (int64 .Values.worker.memoryGiB) 1152 }}Mi
{{- end -}}
{{- end -}}

{{- define "retroinfer.storeMemory" -}}
{{ add (mul (int64 .Values.store.arenaGiB) 1040) 512 }}Mi
{{- end -}}

{{/* Options that worker and gateway have alike: who may ask, and the certificate. */}}
{{- define "retroinfer.keyOptions" -}}
{{- if .Values.tenants.secret }}
- --tenants-file=/etc/retroinfer-tenants/tenants.toml
{{- else if .Values.apiKey.secret }}
- --api-key-file=/etc/retroinfer-api-key/{{ .Values.apiKey.key }}
{{- end }}
{{- end -}}

{{- define "retroinfer.tlsOptions" -}}
{{- if .Values.tls.secret }}
- --tls-certificate=/etc/retroinfer-tls/tls.crt
- --tls-key=/etc/retroinfer-tls/tls.key
{{- end }}
{{- end -}}

{{- define "retroinfer.keyMounts" -}}
{{- if .Values.tenants.secret }}
- {name: tenants, mountPath: /etc/retroinfer-tenants, readOnly: true}
{{- else if .Values.apiKey.secret }}
- {name: api-key, mountPath: /etc/retroinfer-api-key, readOnly: true}
{{- end }}
{{- if .Values.tls.secret }}
- {name: tls, mountPath: /etc/retroinfer-tls, readOnly: true}
{{- end }}
{{- end -}}

{{- define "retroinfer.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Values that are right each by itself and wrong together. */}}
{{- define "retroinfer.check" -}}
{{- if gt (mul (int64 .Values.cache.contextsGiB) 100) (mul (int64 .Values.cache.volumeGiB) 95) -}}
{{- fail (printf "cache.contextsGiB is %d: a volume of cache.volumeGiB = %d has room for 95 %% of its size at most" (int64 .Values.cache.contextsGiB) (int64 .Values.cache.volumeGiB)) -}}
{{- end -}}
{{- if and (or (gt (int64 .Values.replicas) 1) .Values.autoscaling.enabled) (not .Values.cache.perPod) -}}
{{- fail "more than one pod cannot share the claim of the cache: set cache.perPod to true, or replicas to 1 and autoscaling.enabled to false" -}}
{{- end -}}
{{- if gt (int64 .Values.autoscaling.minReplicas) (int64 .Values.autoscaling.maxReplicas) -}}
{{- fail (printf "autoscaling.minReplicas is %d, more than autoscaling.maxReplicas = %d" (int64 .Values.autoscaling.minReplicas) (int64 .Values.autoscaling.maxReplicas)) -}}
{{- end -}}
{{- if and .Values.cache.perPod .Values.cache.existingClaim -}}
{{- fail "cache.perPod makes a volume for each pod: leave cache.existingClaim empty" -}}
{{- end -}}
{{- if and (not .Values.model.claim) (not .Values.model.fetch.image) -}}
{{- fail "the pod has no model: name a claim in model.claim, or an image that brings one in model.fetch.image" -}}
{{- end -}}
{{- if and .Values.model.draft (gt (int .Values.worker.gpus.count) 1) -}}
{{- fail "model.draft is for one rank: set worker.gpus.count to 1, or leave it empty" -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.gateway.enabled) -}}
{{- fail "ingress.enabled needs gateway.enabled: the ingress leads to the HTTP gateway" -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.host) -}}
{{- fail "ingress.enabled needs ingress.host, the name that clients ask for" -}}
{{- end -}}
{{- if and .Values.tls.clientCa (not .Values.tls.secret) -}}
{{- fail "tls.clientCa needs tls.secret, whose ca.crt it means" -}}
{{- end -}}
{{- end -}}
