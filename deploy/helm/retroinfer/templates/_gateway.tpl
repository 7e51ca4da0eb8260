{{/* The container http-gateway. */}}
{{- define "retroinfer.gateway" -}}
- name: http-gateway
  image: {{ include "retroinfer.image" (list . .Values.images.gateway "") }}
  imagePullPolicy: {{ .Values.images.pullPolicy }}
  args:
    - --http=0.0.0.0:8000
    - --worker=unix:/run/retroinfer/generation.sock
    - --http-metrics-address=0.0.0.0:9403
    - --drain-timeout={{ int64 .Values.drainSeconds }}s
    {{- with include "retroinfer.keyOptions" . | trim }}{{ nindent 4 . }}{{- end }}
    {{- if and .Values.apiKey.secret (not .Values.tenants.secret) }}
    - --worker-api-key-file=/etc/retroinfer-api-key/{{ .Values.apiKey.key }}
    {{- end }}
    {{- with include "retroinfer.tlsOptions" . | trim }}{{ nindent 4 . }}{{- end }}
    {{- with include "retroinfer.options" .Values.gateway.settings | trim }}{{ nindent 4 . }}{{- end }}
  ports:
    - {name: http, containerPort: 8000}
    - {name: gateway-metrics, containerPort: 9403}
  securityContext:
    {{- include "retroinfer.confined" . | nindent 4 }}
  resources:
    requests: {cpu: {{ .Values.gateway.cpu | quote }}, memory: {{ int64 .Values.gateway.memoryMiB }}Mi}
    limits: {memory: {{ int64 .Values.gateway.memoryMiB }}Mi}
  # Whether the worker can answer is its own readiness; this one only has to live.
  startupProbe:
    tcpSocket: {port: http}
    periodSeconds: 1
    failureThreshold: 60
  readinessProbe:
    tcpSocket: {port: http}
    periodSeconds: 5
    failureThreshold: 3
  livenessProbe:
    tcpSocket: {port: http}
    periodSeconds: 10
    failureThreshold: 3
    timeoutSeconds: 5
  lifecycle:
    # Balancers hear of the end before it comes.
    preStop:
      exec:
        command: [/usr/bin/sleep, "5"]
  volumeMounts:
    - {name: sockets, mountPath: /run/retroinfer}
    {{- with include "retroinfer.keyMounts" . | trim }}{{ nindent 4 . }}{{- end }}
{{- end -}}
