"""Side files of NCCL and c10d: profiler plugins, proxy profiler, inspector, Flight Recorder."""
