#pragma once

// Which nodes of a graph belong to a routed-expert chain: the expert products (MUL_MAT_ID on weights that Nanite holds)
// and the element-wise nodes between them, up to the down projection. Structure decides, never names.
//
// The nodes after the down projection (bias, routing weights, the sum over the experts) stay where upstream puts them:
// beside a GPU that is the GPU, where they cost less than the barriers of eight small additions on the CPU.
//
// Rules
//   1. MUL_MAT_ID belongs when its weights lie in Nanite's buffer type and its activations are F32.
//   2. An element-wise node with one chain operand (activation, bias, scale, clamp, view) belongs.
//   3. A node that joins two results (ADD, GLU with two operands) belongs only when both lead back to a product.
//   4. A leaf belongs when it is not allocated yet or lies in Nanite's buffer type: foreign weights are never adopted.
//   5. The CPU backend must be able to run the node; and no node whose product a GPU would take over by upstream's own
//      offload of big batches (weights copied to the GPU) belongs, so that this path stays as it is.

#include "ggml.h"

// Does the node belong to a chain that Nanite runs? Thread safe, allocates nothing.
bool nanite_chain_owns(const struct ggml_tensor * op);

// Is `node` (an expert product) the down projection: does its input lead back to another expert product?
bool nanite_chain_is_down(const struct ggml_tensor * node);

// "blk.12.ffn_down_exps.weight" -> 12; -1 when the name holds no layer number.
int nanite_chain_layer(const char * weight_name);
