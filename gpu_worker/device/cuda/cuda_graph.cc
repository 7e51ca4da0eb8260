#include "gpu_worker/device/cuda/cuda_graph.h"

#include "absl/memory/memory.h"
#include "common/status/status_macros.h"
#include "gpu_worker/device/cuda/cuda_status.h"

namespace retroinfer {

absl::StatusOr<std::unique_ptr<CudaGraph>> CudaGraph::Capture(
    CudaStream& stream, absl::FunctionRef<absl::Status()> enqueue) {
  // Not global: the threads of other streams allocate and synchronise as they like.
  RETURN_IF_CUDA_ERROR(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
  const absl::Status enqueued = enqueue();
  cudaGraph_t graph = nullptr;
  // Ends the capture in any case, so that the stream can be used again.
  const absl::Status ended =
      CudaStatus(cudaStreamEndCapture(stream.get(), &graph), "recording a graph");
  absl::Status status = enqueued.ok() ? ended : enqueued;
  cudaGraphExec_t executable = nullptr;
  if (status.ok()) {
    status = CudaStatus(cudaGraphInstantiate(&executable, graph, 0), "preparing a graph");
  }
  if (graph != nullptr) (void)cudaGraphDestroy(graph);
  RETURN_IF_ERROR(status);
  return absl::WrapUnique(new CudaGraph(executable));
}

CudaGraph::~CudaGraph() { (void)cudaGraphExecDestroy(executable_); }

}  // namespace retroinfer
