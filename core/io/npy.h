/* npy.h - one NumPy array from wherever its bytes are. */
#ifndef NP_IO_NPY_H
#define NP_IO_NPY_H

#include "io/file.h"
#include "tensor/tensor.h"

/* The array that an open file or piece of memory holds, whole. NULL with E-FORMAT, E-IO or E-NOMEM. */
neap_tensor *np_read_npy(const np_infile *in);

#endif
