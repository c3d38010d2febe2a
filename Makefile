# Neap's build. Everything is made under build/ (BUILD=...); nothing is installed unless you say so.
#
#   make build      libraries, Lua module, the program        make bench     measurements (no pass or fail)
#   make demo       a complete small training run             make docs      reference, stubs, guide
#   make demo DEVICE=cudaemu    a training on the emulated GPU beside the CPU's (DEVICE=cuda: on a GPU)
#   make test       all tests, ends with "N passed, N failed" make format    clang-format
#   make check      compilers, sanitizers, valgrind, gates    make install   PREFIX=/usr/local DESTDIR=
#   make op-table   every op by what tests show of it         make check-cudaemu-detectors
#   make device-table   by which way every op runs on each device   make cuda-coverage
#   make examples   the examples in Lua, shortened           make deps       missing Debian packages
#   make clean, make help
#
# Variables: CC=gcc|clang  SAN=1 (ASan, UBSan)  TSAN=1  BUILD=dir  V=1 (show commands)  PARTS="san fuzz" (of check)

CC := $(if $(filter default undefined,$(origin CC)),gcc,$(CC))
VARIANT := $(if $(SAN),-san)$(if $(TSAN),-tsan)$(if $(FUZZ),-fuzz)
BUILD ?= build$(VARIANT)
PREFIX ?= /usr/local
LUA ?= lua5.4
LUA_INC ?= $(firstword $(wildcard /usr/include/lua5.4 /usr/local/include/lua5.4) /usr/include)
LUA_LIB ?= -llua5.4
Q := $(if $(V),,@)
GEN := $(BUILD)/gen
OBJ := $(BUILD)/obj
JOBS = $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc))

# ---- flags ------------------------------------------------------------------------------------------------

# No contraction and no reassociation: results are the same bits on every run (docs: "same bits").
# (pass-failed: clang telling that it vectorised less than it was asked to. Not about the code.)
WARN := -Wall -Wextra -Wpedantic -Werror $(if $(findstring clang,$(CC)),-Wno-pass-failed)
CFLAGS ?= -O3 -g
FLAGS = -std=gnu11 $(WARN) $(CFLAGS) -fPIC -fvisibility=hidden -ffp-contract=off -fno-math-errno \
  -fno-trapping-math -Icore -I$(GEN) $(SANFLAGS)
LIBS := -lm -lpthread -ldl -lz -lminizip -ljansson
ifdef SAN
SANFLAGS := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
endif
ifdef TSAN
SANFLAGS := -fsanitize=thread -fno-omit-frame-pointer
endif
ifdef FUZZ # for libFuzzer: clang only
SANFLAGS := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
endif
MARCH_0 := -march=x86-64
MARCH_1 := -march=x86-64-v3
MARCH_2 := -march=x86-64-v4

# ---- sources ----------------------------------------------------------------------------------------------

OPS := $(sort $(wildcard core/ops/*.c))
# Files that hold kernels are compiled once per CPU level.
KERNEL := $(filter-out core/ops/dispatch.c core/ops/registry.c core/ops/infer.c core/ops/sample.c \
  core/ops/cast.c core/ops/origin.c core/ops/remote.c,$(OPS)) \
  core/ops/cpu/gemm.c
CORE := $(filter-out $(KERNEL),$(sort $(wildcard core/*.c core/base/*.c core/tensor/*.c core/ops/*.c \
  core/ops/cpu/*.c core/autograd/*.c core/checkpoint/*.c core/io/*.c)))
GENERATED := $(GEN)/neap_ops.c $(GEN)/np_grad_ops.c $(GEN)/np_registry.c
GENERATED_H := $(GEN)/np_opx.h $(GEN)/neap_ops.h $(GEN)/np_grad_ops.h
BINDINGS := $(filter-out bindings/program.c,$(sort $(wildcard bindings/*.c)))
LUA_FILES := $(sort $(wildcard lua/*.lua lua/*/*.lua lua/*/*/*.lua))
TESTS := $(patsubst tests/core/%.c,$(BUILD)/tests/%,$(sort $(wildcard tests/core/test_*.c)))
EMBED := $(patsubst examples/embed/%.c,$(BUILD)/examples/%,$(sort $(wildcard examples/embed/*.c)))
FUZZERS := $(patsubst tests/fuzz/%.c,$(BUILD)/fuzz/%,$(sort $(wildcard tests/fuzz/fuzz_*.c)))
BENCH := $(patsubst bench/%.c,$(BUILD)/bench/%,$(sort $(wildcard bench/*.c)))

CORE_OBJ := $(CORE:core/%.c=$(OBJ)/%.o) $(GENERATED:$(GEN)/%.c=$(OBJ)/gen/%.o) \
  $(foreach l,0 1 2,$(KERNEL:core/%.c=$(OBJ)/%.$(l).o))
BINDINGS_OBJ := $(BINDINGS:%.c=$(OBJ)/%.o) $(OBJ)/gen/lua_files.o

# ---- what is built ----------------------------------------------------------------------------------------

.PHONY: cuda-coverage cudaemu-selftests check-cudaemu-detectors bench-faults examples help op-table device-table build all-tests fuzzers deps demo test run-tests check bench install install-rock uninstall docs format clean objects
.DELETE_ON_ERROR:
.SUFFIXES:

HAVE_PROGRAM := $(if $(wildcard bindings/program.c),$(BUILD)/neap)
HAVE_BINDINGS := $(if $(BINDINGS),$(BUILD)/libneap-lua.so $(BUILD)/lua/neapcore.so)
build: $(BUILD)/libneap.so $(BUILD)/libneap.a $(HAVE_BINDINGS) $(HAVE_PROGRAM) $(BUILD)/lua/neap $(EMBED)
objects: $(CORE_OBJ) $(BINDINGS_OBJ)
all-tests: build $(TESTS) $(BENCH) $(BUILD)/tests/force_gc.so $(if $(SAN)$(TSAN)$(FUZZ),,$(BUILD)/libneap-cudaemu.so)
fuzzers: $(FUZZERS)

# The files that follow from the op entries. Each is rewritten only when its content changes.
$(GEN)/.stamp: tools/gen.lua $(OPS)
	@mkdir -p $(GEN)
	$(Q)$(LUA) tools/gen.lua code core/ops $(GEN)
	@touch $@
$(GENERATED) $(GENERATED_H): $(GEN)/.stamp
	@:

define say
@printf '  %-5s %s\n' $(1) $@
@mkdir -p $(@D)
endef

define kernel_rule
$(OBJ)/ops/%.$(1).o: core/ops/%.c | $(GEN)/.stamp
	$$(call say,CC)
	$(Q)$$(CC) $$(FLAGS) $$(MARCH_$(1)) -DNP_ISA=$(1) -MMD -MP -c $$< -o $$@
endef
$(foreach l,0 1 2,$(eval $(call kernel_rule,$(l))))

# The library's Lua files inside libneap-lua: a host needs no LUA_PATH.
$(GEN)/lua_files.c: tools/embed.lua $(LUA_FILES)
	@mkdir -p $(GEN)
	$(Q)$(LUA) tools/embed.lua lua $(LUA_FILES) > $@
$(OBJ)/gen/lua_files.o: $(GEN)/lua_files.c bindings/lua_files.h
	$(call say,CC)
	$(Q)$(CC) $(FLAGS) $(MARCH_0) -Ibindings -c $< -o $@
$(OBJ)/gen/%.o: $(GEN)/%.c
	$(call say,CC)
	$(Q)$(CC) $(FLAGS) $(MARCH_0) -MMD -MP -c $< -o $@
$(OBJ)/bindings/%.o: bindings/%.c | $(GEN)/.stamp
	$(call say,CC)
	$(Q)$(CC) $(FLAGS) $(MARCH_0) -I$(LUA_INC) -MMD -MP -c $< -o $@
$(OBJ)/%.o: core/%.c | $(GEN)/.stamp
	$(call say,CC)
	$(Q)$(CC) $(FLAGS) $(MARCH_0) -MMD -MP -c $< -o $@

$(BUILD)/libneap.so: $(CORE_OBJ) tools/neap.map
	$(call say,LINK)
	$(Q)$(CC) $(SANFLAGS) -shared -Wl,-soname,libneap.so -Wl,--version-script=tools/neap.map \
	  $(if $(SANFLAGS),,-Wl$(comma)-z$(comma)defs) $(CORE_OBJ) -o $@ $(LIBS)
comma := ,

# One relocatable object with hidden symbols made local: a host cannot clash with our internal names.
$(BUILD)/libneap.a: $(CORE_OBJ)
	$(call say,AR)
	$(Q)ld -r $(CORE_OBJ) -o $(OBJ)/libneap.o
	$(Q)objcopy --localize-hidden $(OBJ)/libneap.o
	$(Q)rm -f $@ && ar rcs $@ $(OBJ)/libneap.o
# For the C tests, which look inside.
$(BUILD)/libneap-test.a: $(CORE_OBJ)
	$(call say,AR)
	$(Q)rm -f $@ && ar rcs $@ $(CORE_OBJ)

# The Lua side is linked without liblua: the interpreter or host that loads it brings Lua's functions.
$(BUILD)/libneap-lua.so: $(BINDINGS_OBJ) $(BUILD)/libneap.so
	$(call say,LINK)
	$(Q)$(CC) $(SANFLAGS) -shared -Wl,-soname,libneap-lua.so -Wl,-rpath,'$$ORIGIN' $(BINDINGS_OBJ) -o $@ \
	  -L$(BUILD) -lneap -lm
# The module itself is empty: it leads to libneap-lua.so, so that a process never holds two cores.
$(BUILD)/lua/neapcore.so: $(BUILD)/libneap-lua.so
	$(call say,LINK)
	$(Q)$(CC) $(SANFLAGS) -shared -Wl,--no-as-needed -Wl,-rpath,'$$ORIGIN:$$ORIGIN/..:$$ORIGIN/../..' -x c /dev/null -x none \
	  -o $@ -L$(BUILD) -lneap-lua -Wl,-rpath-link,$(BUILD)
$(BUILD)/lua/neap: | $(BUILD)/libneap.so
	@mkdir -p $(@D)
	@ln -sfn $(CURDIR)/lua $@
$(BUILD)/neap: $(OBJ)/bindings/program.o $(BUILD)/libneap-lua.so
	$(call say,LINK)
	$(Q)$(CC) $(SANFLAGS) -Wl,-E -Wl,-rpath,'$$ORIGIN:$$ORIGIN/../lib' $< -o $@ -L$(BUILD) -lneap-lua -lneap \
	  $(LUA_LIB) -ledit -lm -ldl

$(BUILD)/tests/%: tests/core/%.c $(BUILD)/libneap-test.a
	$(call say,TEST)
	$(Q)$(CC) $(FLAGS) -Itests/core -MMD -MP -MF $@.d $< -o $@ $(BUILD)/libneap-test.a -lcmocka $(LIBS)
# Tests of the Lua side in C: the bindings' objects and the interpreter in one program.
$(BUILD)/tests/test_lua_%: tests/core/test_lua_%.c $(BUILD)/libneap-test.a $(BINDINGS_OBJ)
	$(call say,TEST)
	$(Q)$(CC) $(FLAGS) -I$(LUA_INC) -Ibindings -Itests/core -MMD -MP -MF $@.d $< -o $@ $(BINDINGS_OBJ) \
	  $(BUILD)/libneap-test.a -lcmocka $(LUA_LIB) $(LIBS)
# For Lua specs: runs the collector at every op. Like the module, it takes Lua's functions from the interpreter.
$(BUILD)/tests/force_gc.so: tests/lua/force_gc.c $(BUILD)/libneap-lua.so
	$(call say,TEST)
	$(Q)$(CC) $(FLAGS) -I$(LUA_INC) -Ibindings -MMD -MP -MF $@.d -shared $< -o $@ -Wl,-rpath,'$$ORIGIN/..' \
	  -L$(BUILD) -lneap-lua -lneap
# With FUZZ=1 libFuzzer brings main; otherwise a program that runs the files it is given.
$(BUILD)/fuzz/%: tests/fuzz/%.c $(BUILD)/libneap-test.a
	$(call say,FUZZ)
	$(Q)$(CC) $(FLAGS) $(if $(FUZZ),-fsanitize=fuzzer -DNEAP_LIBFUZZER) -MMD -MP -MF $@.d $< -o $@ \
	  $(BUILD)/libneap-test.a $(LIBS)
$(BUILD)/bench/%: bench/%.c $(BUILD)/libneap-test.a
	$(call say,BENCH)
	$(Q)$(CC) $(FLAGS) -MMD -MP -MF $@.d $< -o $@ $(BUILD)/libneap-test.a $(LIBS)
# Hosts see the public header and the archive, nothing else.
$(BUILD)/examples/%: examples/embed/%.c $(BUILD)/libneap.a
	$(call say,HOST)
	$(Q)$(CC) -std=c11 $(WARN) $(CFLAGS) $(SANFLAGS) -Icore -I$(GEN) -MMD -MP -MF $@.d $< -o $@ $(BUILD)/libneap.a $(LIBS)

# A host with a Lua state of its own.
$(BUILD)/examples/script: examples/embed/script.c $(BUILD)/libneap-lua.so
	$(call say,HOST)
	$(Q)$(CC) -std=c11 $(WARN) $(CFLAGS) $(SANFLAGS) -Icore -I$(GEN) -Ibindings -I$(LUA_INC) -MMD -MP -MF $@.d $< -o $@ \
	  -Wl,-rpath,'$$ORIGIN/..' -L$(BUILD) -lneap-lua -lneap $(LUA_LIB) -lm -ldl

# CUDA sources without a GPU: as C++ against the emulator of tests/cudaemu, plain and under each sanitizer. The
# emulator itself is never instrumented for the thread sanitizer (it tells it what happens), nor for UBSan.
EMU := $(BUILD)/cudaemu
EMU_SRC := $(wildcard tests/cudaemu/*.cpp)
CUDA_SRC := $(sort $(wildcard core/cuda/*.cu))
EMU_FLAGS := -std=c++17 -g1 -Wall -Wextra -Wpedantic -Werror -Wno-unknown-pragmas -fPIC -ffp-contract=off -Icore -Itests/cudaemu
define emu_variant # name, compiler, flags of kernels, of the emulator, of the link
$(EMU)/$(1)/%.o: tests/cudaemu/%.cpp
	$$(call say,EMU)
	$(Q)$(2) $$(EMU_FLAGS) $(4) -MMD -MP -c $$< -o $$@
$(EMU)/$(1)/%.o: tests/cudaemu/%.cu | $(GENERATED_H)
	$$(call say,EMU)
	$(Q)$(2) $$(EMU_FLAGS) -I$(GEN) $(3) -MMD -MP -x c++ -c $$< -o $$@
$(EMU)/$(1)/selftest $(EMU)/$(1)/selftest_blas: %: %.o $(EMU_SRC:tests/cudaemu/%.cpp=$(EMU)/$(1)/%.o)
	$$(call say,LINK)
	$(Q)$(2) $(5) $$^ -o $$@ -ldl
# The plug-in's sources, as the emulated device.
$(EMU)/$(1)/%.o: core/cuda/%.cu | $(GENERATED_H)
	$$(call say,EMU)
	$(Q)$(2) $$(EMU_FLAGS) -Icore/cuda -I$(GEN) -fvisibility=hidden $(3) -MMD -MP -x c++ -c $$< -o $$@
$(EMU)/$(1)/libneap-cudaemu.so: $(CUDA_SRC:core/cuda/%.cu=$(EMU)/$(1)/%.o) $(EMU_SRC:tests/cudaemu/%.cpp=$(EMU)/$(1)/%.o)
	$$(call say,LINK)
	$(Q)$(2) -shared $(5) $$^ -o $$@ -ldl -Wl,--exclude-libs,ALL
-include $(CUDA_SRC:core/cuda/%.cu=$(EMU)/$(1)/%.d)
-include $(EMU)/$(1)/selftest.d $(EMU)/$(1)/selftest_blas.d $(EMU_SRC:tests/cudaemu/%.cpp=$(EMU)/$(1)/%.d)
endef
$(eval $(call emu_variant,plain,g++,-O1,-O2,))
$(eval $(call emu_variant,ucontext,g++,-O2,-O2 -DNP_EMU_UCONTEXT,))
$(eval $(call emu_variant,asan,g++,-O1 -fsanitize=address$(comma)undefined -fno-omit-frame-pointer,-O1 -fsanitize=address,-fsanitize=address$(comma)undefined))
$(eval $(call emu_variant,cov,g++,-O0 -fno-exceptions --coverage,-O2,--coverage))
$(eval $(call emu_variant,tsan,clang++,-O1 -fsanitize=thread,-O2 -DNP_EMU_TSAN,-fsanitize=thread))

# What runs Lua under it.
$(EMU)/tsan/lua: tests/cudaemu/lua.c
	$(call say,HOST)
	$(Q)clang -std=c11 -g -O1 $(WARN) -fsanitize=thread -I$(LUA_INC) -MMD -MP -MF $@.d $< -o $@ -Wl,-E $(LUA_LIB)

NVCC ?= $(shell command -v nvcc)
# No contraction, as for the CPU.
NVCC_FLAGS := -std=c++17 -O3 -fmad=false -lineinfo --compress-mode=size --threads 2 -Icore -Xcompiler -Wall,-Wextra,-Werror -Werror all-warnings
# Machine code for each, and, of several, the last also as what a driver compiles for newer ones.
gencode = $(foreach a,$(subst -, ,$(1)),-gencode arch=compute_$(a),code=sm_$(a)) \
  $(if $(findstring -,$(1)),$(foreach a,$(lastword $(subst -, ,$(1))),-gencode arch=compute_$(a),code=compute_$(a)))
# The plug-in for GPUs, by the compute capabilities it is for. It needs no CUDA library to be opened: the runtime is
# linked in, the driver is asked for. What the assembler says of registers is kept beside each object, for
# tools/check_nvcc.sh.
define nvcc_variant # capabilities
$(BUILD)/cuda/$(1)/%.o: core/cuda/%.cu | $(GENERATED_H)
	$$(call say,NVCC)
	$(Q)[ "$$(NVCC)" ] || { echo "there is no nvcc, which compiles for GPUs: CUDA 13 has it"; exit 1; }
	$(Q)$$(NVCC) $$(NVCC_FLAGS) $$(call gencode,$(1)) -Icore/cuda -I$(GEN) -Xcompiler -fPIC,-fvisibility=hidden -Xptxas -v \
	  -MD -MF $$(@:.o=.d) -c $$< -o $$@ >$$(@:.o=.ptxas) 2>&1 || { cat $$(@:.o=.ptxas); rm -f $$@; exit 1; }
$(BUILD)/cuda/$(1)/libneap-cuda.so: $(CUDA_SRC:core/cuda/%.cu=$(BUILD)/cuda/$(1)/%.o)
	$$(call say,LINK)
	$(Q)$$(NVCC) -shared -cudart static $$^ -o $$@ -Xlinker --exclude-libs,ALL -ldl
-include $(CUDA_SRC:core/cuda/%.cu=$(BUILD)/cuda/$(1)/%.d)
endef
$(eval $(call nvcc_variant,80-90))
$(eval $(call nvcc_variant,90))
# Where a plug-in is looked for.
$(BUILD)/libneap-cuda.so: $(BUILD)/cuda/80-90/libneap-cuda.so
	$(call say,COPY)
	$(Q)cp $< $@
# The device of tests, where a plug-in is looked for.
$(BUILD)/libneap-cudaemu.so: $(EMU)/plain/libneap-cudaemu.so
	$(call say,COPY)
	$(Q)cp $< $@
$(EMU)/nvcc/%: tests/cudaemu/%.cu tests/cudaemu/selftest_kernels.h core/cuda/np_cuda.h core/cuda/walk.h | $(GENERATED_H)
	$(call say,NVCC)
	$(Q)$(NVCC) $(NVCC_FLAGS) -I$(GEN) $(call gencode,80-90) $< -o $@ $(if $(findstring blas,$@),-lcublasLt)

-include $(CORE_OBJ:.o=.d) $(BINDINGS_OBJ:.o=.d) $(OBJ)/bindings/program.d $(TESTS:=.d) $(BUILD)/tests/force_gc.so.d $(FUZZERS:=.d) $(BENCH:=.d) $(EMBED:=.d)

# ---- what is done with it ---------------------------------------------------------------------------------

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile
deps:
	@tools/deps.sh build test demo
# With DEVICE=cuda or DEVICE=cudaemu: that device beside the CPU.
DEVICE ?= cpu
demo:
	@case '$(DEVICE)' in cpu | cuda | cudaemu) ;; *) echo "make demo: DEVICE is cpu, cuda or cudaemu, not '$(DEVICE)'" >&2; exit 2 ;; esac
	@tools/deps.sh build demo $(if $(filter cudaemu,$(DEVICE)),emulator)
	@$(MAKE) --no-print-directory $(JOBS) build $(if $(filter-out cpu,$(DEVICE)),$(BUILD)/libneap-$(DEVICE).so)
	$(BUILD)/neap $(if $(filter-out cpu,$(DEVICE)),examples/on_device.lua $(DEVICE),examples/fashion_mnist.lua)
# Every example in Lua, the longer ones shortened.
examples: build
	$(Q)for e in xor curve_fit selective context_managers checkpoint_mlp lynx_hare; do \
	  echo "-- examples/$$e.lua"; $(BUILD)/neap examples/$$e.lua || exit 1; done
	$(Q)echo "-- examples/names.lua"; $(BUILD)/neap examples/names.lua ../shared/data/names.txt 1
test:
	@tools/deps.sh build test
	@$(MAKE) --no-print-directory $(JOBS) all-tests $(if $(SAN)$(TSAN),,$(if $(NVCC),$(BUILD)/cuda/90/libneap-cuda.so))
	@$(MAKE) --no-print-directory run-tests
run-tests:
	@$(LUA) tests/run.lua $(BUILD) $(if $(SAN),asan)$(if $(TSAN),tsan)
# Every op by what the tests show of it; fails where a cell is blank.
OP_TESTS := $(addprefix $(BUILD)/tests/,test_ops test_ops_grad test_ops_forms)
op-table: $(OP_TESTS)
	$(Q)$(LUA) tools/op_table.lua $(OP_TESTS)
# By which way every op runs on each device; fails where there is none. What nvcc has made is asked if it is there.
$(BUILD)/tests/op_ways: tests/cudaemu/op_ways.c $(BUILD)/libneap-test.a
	$(call say,TEST)
	$(Q)$(CC) $(FLAGS) -MMD -MP -MF $@.d $< -o $@ $(BUILD)/libneap-test.a $(LIBS)
device-table: $(BUILD)/tests/op_ways $(BUILD)/libneap-cudaemu.so
	$(Q)$(LUA) tools/device_table.lua $(BUILD)
check:
	@tools/deps.sh build test check
	@tools/check.sh $(PARTS)
# That the emulator's detectors find the mistakes planted for them.
EMU_SELFTESTS := $(foreach t,selftest selftest_blas,$(patsubst %,$(EMU)/%/$(t),plain ucontext asan tsan $(if $(NVCC),nvcc)))
cudaemu-selftests: $(EMU_SELFTESTS)
# Which lines of the kernels no test runs in the emulator.
cuda-coverage: all-tests $(EMU)/cov/libneap-cudaemu.so $(EMU)/cov/selftest
	$(Q)rm -f $(EMU)/cov/*.gcda
	$(Q)$(EMU)/cov/selftest | tail -1
	$(Q)NEAP_CUDA_PLUGIN=$(CURDIR)/$(EMU)/cov/libneap-cudaemu.so NEAP_TEST_DEVICE=cudaemu NEAP_TEST_STEPS=20 \
	  $(LUA) tests/run.lua $(BUILD)
	$(Q)$(LUA) tools/cuda_coverage.lua $(BUILD)
check-cudaemu-detectors:
	@tools/deps.sh check
	@$(MAKE) --no-print-directory $(JOBS) cudaemu-selftests
	@tests/cudaemu/check_detectors.sh $(EMU)
# What a user sees when a checkpointed function is not the same twice, by determinism levels.
bench-faults: build
	$(Q)$(BUILD)/neap bench/faults.lua
bench: all-tests
	@bench/run.sh $(BUILD)
docs:
	$(Q)$(LUA) tools/docs.lua

FORMATTED = $(wildcard core/*.[ch] core/*/*.[ch] core/ops/cpu/*.[ch] bindings/*.[ch] tests/core/*.[ch] tests/fuzz/*.[ch] \
  tests/lua/*.c tests/cudaemu/*.c bench/*.[ch] examples/embed/*.[ch] core/cuda/*.cu core/cuda/*.h tests/cudaemu/*.h tests/cudaemu/*.cpp tests/cudaemu/*.cu)
format:
	clang-format -i $(FORMATTED)

INSTALL_LUA = $(DESTDIR)$(PREFIX)/share/lua/5.4/neap
install: build
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(PREFIX)/lib/lua/5.4 \
	  $(DESTDIR)$(PREFIX)/lib/pkgconfig
	install -m 755 $(BUILD)/neap $(DESTDIR)$(PREFIX)/bin/neap
	install -m 755 $(BUILD)/libneap.so $(BUILD)/libneap-lua.so $(DESTDIR)$(PREFIX)/lib
	install -m 644 $(BUILD)/libneap.a $(DESTDIR)$(PREFIX)/lib
	install -m 644 core/neap.h $(GEN)/neap_ops.h $(wildcard bindings/neap_lua.h) $(DESTDIR)$(PREFIX)/include
	install -m 755 $(BUILD)/lua/neapcore.so $(DESTDIR)$(PREFIX)/lib/lua/5.4/neapcore.so
	printf 'Name: neap\nDescription: tensors, autograd and checkpointing\nVersion: 0.1.0\nLibs: -L%s/lib -lneap\nLibs.private: %s\nCflags: -I%s/include\n' \
	  '$(PREFIX)' '$(LIBS)' '$(PREFIX)' > $(DESTDIR)$(PREFIX)/lib/pkgconfig/neap.pc
	install -D -m 644 docs/neap.1 $(DESTDIR)$(PREFIX)/share/man/man1/neap.1
	for f in $(LUA_FILES:lua/%=%); do install -D -m 644 lua/$$f $(INSTALL_LUA)/$$f || exit 1; done
# What luarocks asks for: the module with its libraries beside it, and the Lua files.
install-rock: build
	install -d $(LIBDIR) $(LUADIR)
	install -m 755 $(BUILD)/lua/neapcore.so $(BUILD)/libneap.so $(BUILD)/libneap-lua.so $(LIBDIR)
	for f in $(LUA_FILES:lua/%=%); do install -D -m 644 lua/$$f $(LUADIR)/neap/$$f || exit 1; done
uninstall:
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/,bin/neap lib/libneap.so lib/libneap-lua.so lib/libneap.a include/neap.h \
	  include/neap_ops.h include/neap_lua.h lib/lua/5.4/neapcore.so lib/pkgconfig/neap.pc \
	  share/man/man1/neap.1)
	rm -rf $(INSTALL_LUA)
clean:
	rm -rf build build-*
