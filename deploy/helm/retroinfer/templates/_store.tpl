{{/* The container kv-store. */}}
{{- define "retroinfer.store" -}}
- name: kv-store
  image: {{ include "retroinfer.image" (list . .Values.images.store "") }}
  imagePullPolicy: {{ .Values.images.pullPolicy }}
  args: [--config=/etc/retroinfer/kv_store_service.conf]
  ports:
    - {name: store-metrics, containerPort: 9402}
  securityContext:
    {{- include "retroinfer.confined" . | nindent 4 }}
  resources:
    # The arena is charged to this container, which touches the pages first.
    requests: {cpu: {{ .Values.store.cpu | quote }}, memory: {{ include "retroinfer.storeMemory" . }}}
    limits: {memory: {{ include "retroinfer.storeMemory" . }}}
  # By its socket: no port is open for the store.
  startupProbe:
    exec:
      command:
        - /usr/bin/retroinfer
        - health
        - --live
        - --address=unix:/run/retroinfer/sockets/kv_store.sock
    periodSeconds: 5
    failureThreshold: 360
    timeoutSeconds: 5
  livenessProbe:
    exec:
      command:
        - /usr/bin/retroinfer
        - health
        - --live
        - --address=unix:/run/retroinfer/sockets/kv_store.sock
    periodSeconds: 10
    failureThreshold: 3
    timeoutSeconds: 5
  readinessProbe:
    exec:
      command:
        - /usr/bin/retroinfer
        - health
        - --address=unix:/run/retroinfer/sockets/kv_store.sock
    periodSeconds: 10
    failureThreshold: 3
    timeoutSeconds: 5
  lifecycle:
    # The worker goes first: what it has read is written before the store ends.
    preStop:
      exec:
        command:
          - /usr/bin/retroinfer
          - health
          - --gone
          - --wait={{ add (int64 .Values.drainSeconds) 40 }}s
          - --address=unix:/run/retroinfer/generation.sock
  volumeMounts:
    - {name: settings, mountPath: /etc/retroinfer, readOnly: true}
    - {name: sockets, mountPath: /run/retroinfer}
    - {name: cache, mountPath: /var/cache/retroinfer}
{{- end -}}
