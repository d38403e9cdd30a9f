// Runs an exported policy once: prints the control time step and the action for an observation (default: zeros).
//
// $ORT is where an archive of ONNX Runtime's releases (onnxruntime-linux-x64-*.tgz) was unpacked:
//   g++ -std=c++17 -O2 policy.cpp -I$ORT/include -L$ORT/lib -lonnxruntime -Wl,-rpath,$ORT/lib -o policy
//   ./policy policy.onnx 0 1 0 0 0
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include <onnxruntime_cxx_api.h>

int main(int argc, char** argv) try {
    if (argc < 2) throw std::invalid_argument("usage: policy policy.onnx [observation ...]");
    Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "policy");
    Ort::SessionOptions options;
    options.SetIntraOpNumThreads(1);  // idle worker threads would spin beside the control loop
    Ort::Session session(env, argv[1], options);

    Ort::AllocatorWithDefaultOptions allocator;
    auto dt = session.GetModelMetadata().LookupCustomMetadataMapAllocated("dt", allocator);
    std::printf("dt %s\n", dt ? dt.get() : "unknown");

    auto shape = session.GetInputTypeInfo(0).GetTensorTypeAndShapeInfo().GetShape();  // (batch, n), or (batch, C, H, W)
    shape[0] = 1;
    std::vector<float> observation(std::accumulate(shape.begin(), shape.end(), size_t{1}, std::multiplies<>()));
    if (argc > 2 && observation.size() != size_t(argc - 2))
        throw std::invalid_argument("the policy reads " + std::to_string(observation.size()) + " numbers, not " +
                                    std::to_string(argc - 2));
    for (int i = 2; i < argc; ++i) {
        char* end;
        observation[i - 2] = std::strtof(argv[i], &end);
        if (*end) throw std::invalid_argument(std::string(argv[i]) + " is not a number");
    }

    auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    auto input = Ort::Value::CreateTensor<float>(memory, observation.data(), observation.size(),  // a view, not a copy
                                                 shape.data(), shape.size());
    const char *inputs[] = {"observation"}, *outputs[] = {"action"};
    auto action = session.Run(Ort::RunOptions{nullptr}, inputs, &input, 1, outputs, 1);  // a control loop repeats this
    for (size_t i = 0; i < action[0].GetTensorTypeAndShapeInfo().GetElementCount(); ++i)
        std::printf("%.9g\n", action[0].GetTensorData<float>()[i]);
} catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
}
