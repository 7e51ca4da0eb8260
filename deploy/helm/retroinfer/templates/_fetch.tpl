{{/* The init container that brings the model, as values describe it. */}}
{{- define "retroinfer.fetch" -}}
- name: model
  image: {{ .Values.model.fetch.image }}
  imagePullPolicy: {{ .Values.images.pullPolicy }}
  {{- with .Values.model.fetch.command }}
  command:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.model.fetch.args }}
  args:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.model.fetch.env }}
  env:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- include "retroinfer.confined" . | nindent 4 }}
  resources:
    requests: {cpu: {{ .Values.model.fetch.cpu | quote }}, memory: {{ .Values.model.fetch.memory }}}
    limits: {memory: {{ .Values.model.fetch.memory }}}
  volumeMounts:
    - {name: model, mountPath: /models/model}
    {{- if .Values.model.fetch.scratchSize }}
    - {name: scratch, mountPath: /tmp}
    {{- end }}
{{- end -}}
