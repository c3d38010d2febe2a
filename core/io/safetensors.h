/* safetensors.h - the file format of tensors: 8 bytes of length (little-endian), a JSON header, the bytes.
 *
 * The public functions are neap_save, neap_load and neap_file_* of neap.h. What the reader and the writer
 * share is here. Tensors that are the very same one (a tie) are written once; a metadata entry
 * "neap.alias.<name>" = "<name of the written one>" brings the second name back at loading, and both names
 * then give the same tensor. */
#ifndef NP_IO_SAFETENSORS_H
#define NP_IO_SAFETENSORS_H

#include "io/json.h"
#include "tensor/tensor.h"

#define NP_ST_MAX_HEADER 100000000 /* bytes, as every reader of the format demands */
#define NP_ST_ALIAS "neap.alias."
#define NP_ST_METADATA "__metadata__"

/* "F32" and back. */
const char *np_st_dtype_name(neap_dtype d);
bool np_st_dtype_parse(const char *name, neap_dtype *out);

#endif
