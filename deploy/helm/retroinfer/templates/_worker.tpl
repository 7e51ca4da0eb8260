{{/* The container gpu-worker. */}}
{{- define "retroinfer.worker" -}}
- name: gpu-worker
  image: {{ include "retroinfer.image" (list . .Values.images.worker (ternary "-cuda" "" (eq .Values.device "cuda"))) }}
  imagePullPolicy: {{ .Values.images.pullPolicy }}
  args:
    - --config=/etc/retroinfer/gpu_worker.conf
    {{- with include "retroinfer.keyOptions" . | trim }}{{ nindent 4 . }}{{- end }}
    {{- with include "retroinfer.tlsOptions" . | trim }}{{ nindent 4 . }}{{- end }}
    {{- if .Values.tls.clientCa }}
    - --tls-client-ca=/etc/retroinfer-tls/ca.crt
    {{- end }}
  ports:
    - {name: grpc, containerPort: 50051}
    - {name: worker-metrics, containerPort: 9401}
  securityContext:
    {{- include "retroinfer.confined" . | nindent 4 }}
  resources:
    # No CPU limit: a throttled step makes everybody wait.
    requests:
      cpu: {{ .Values.worker.cpu | quote }}
      memory: {{ include "retroinfer.workerMemory" . }}
      {{- with include "retroinfer.gpus" . | trim }}{{ nindent 6 . }}{{- end }}
    limits:
      memory: {{ include "retroinfer.workerMemory" . }}
      {{- with include "retroinfer.gpus" . | trim }}{{ nindent 6 . }}{{- end }}
  # Up to half an hour for the weights, and for the store.
  startupProbe:
    {{- include "retroinfer.workerReady" . | nindent 4 }}
    periodSeconds: 5
    failureThreshold: 360
  # Can it answer: not while it loads, while its store is away, or while it drains.
  readinessProbe:
    {{- include "retroinfer.workerReady" . | nindent 4 }}
    periodSeconds: 2
    failureThreshold: 3
    timeoutSeconds: 2
  # Does the process live: depends on neither store nor model nor a busy device.
  livenessProbe:
    {{- include "retroinfer.workerLive" . | nindent 4 }}
    periodSeconds: 10
    failureThreshold: 3
    timeoutSeconds: 5
  lifecycle:
    # Balancers hear of the end before it comes.
    preStop:
      exec:
        command: [/usr/bin/sleep, "5"]
  volumeMounts:
    - {name: settings, mountPath: /etc/retroinfer, readOnly: true}
    - {name: sockets, mountPath: /run/retroinfer}
    - {name: model, mountPath: /models/model, readOnly: true}
    {{- with include "retroinfer.keyMounts" . | trim }}{{ nindent 4 . }}{{- end }}
{{- end -}}

{{- define "retroinfer.gpus" -}}
{{- if eq .Values.device "cuda" -}}
{{ .Values.worker.gpus.resource }}: {{ int64 .Values.worker.gpus.count | quote }}
{{- end -}}
{{- end -}}

{{/* Kubernetes' gRPC probes speak plain text only: with TLS they go through the socket inside the pod. */}}
{{- define "retroinfer.workerReady" -}}
{{- if .Values.tls.secret -}}
exec:
  command: [/usr/bin/retroinfer, health, "--address=unix:/run/retroinfer/generation.sock"]
{{- else -}}
grpc: {port: 50051}
{{- end -}}
{{- end -}}

{{- define "retroinfer.workerLive" -}}
{{- if .Values.tls.secret -}}
exec:
  command: [/usr/bin/retroinfer, health, --live, "--address=unix:/run/retroinfer/generation.sock"]
{{- else -}}
grpc: {port: 50051, service: retroinfer.live}
{{- end -}}
{{- end -}}
