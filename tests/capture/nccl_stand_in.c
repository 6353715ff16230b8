/* Stands in for NCCL and its example plugin: logs each call to the file named by STAND_IN_LOG, and fails where STAND_IN_FAILS names it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int called(const char* name, const char* text) {
  const char* path = getenv("STAND_IN_LOG");
  if (!path) return 0; /* it stays loaded for other tests */
  FILE* log = fopen(path, "a");
  fprintf(log, "%s(%s)\n", name, text);
  fclose(log);
  const char* fails = getenv("STAND_IN_FAILS");
  return fails && !strcmp(fails, name) ? 5 : 0;
}

int ncclProfilerEnable(void) { return called("ncclProfilerEnable", ""); }

int ncclProfilerDisable(void) { return called("ncclProfilerDisable", ""); }

int ncclProfilingDump(const char* file) {
  FILE* dump = fopen(file, "w");
  fputs("[\n{} ]\n", dump);
  fclose(dump);
  return called("ncclProfilingDump", "");
}

int exampleProfilerStart(int mask, const char* name) {
  char text[4200];
  snprintf(text, sizeof text, "%d, %s", mask, name);
  return called("exampleProfilerStart", text);
}

int exampleProfilerStop(void) { return called("exampleProfilerStop", ""); }
