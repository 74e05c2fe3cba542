"""Write GGUF files with the shapes of published models: real headers, weights that are holes in a sparse file.

    python -m ci.make_gguf_corpus --list
    python -m ci.make_gguf_corpus [--only NAME]... OUTDIR

The files look as large as the models (0.9 TB together) and occupy some 10 MB. A file system without sparse files is
refused after the first file. Not for running: there is no usable tokenizer, and all weights are zero.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGUFValueType, GGUFWriter

from ci.gguf_models import MODELS, Model
from ci.gguf_shapes import Table


def write_model(model: Model, folder: Path) -> list[Path]:
    """Write one model into `folder`; its files, first shard first. Raises OSError where holes take up space."""
    table = Table()
    model.build(table)
    writer = GGUFWriter(
        None,
        model.arch,
        split_max_tensors=model.shard_tensors,
        small_first_shard=model.shard_tensors > 0,
    )
    writer.add_name(model.name)
    writer.add_file_type(model.file_type)
    writer.add_vocab_size(next(shape[1] for name, _, shape in table.rows if name == "token_embd.weight"))
    for key, value in model.keys.items():
        full = f"{model.arch}.{key}"
        if isinstance(value, list):
            writer.add_key_value(full, value, GGUFValueType.ARRAY, GGUFValueType.INT32)
        elif isinstance(value, int):
            writer.add_uint32(full, value)
        else:
            writer.add_float32(full, value)
    writer.add_tokenizer_model("gpt2" if model.vocab else "no_vocab")
    if model.vocab:
        writer.add_token_list([f"token{i}" for i in range(model.vocab)])
        writer.add_token_types([1] * model.vocab)
        writer.add_token_merges([f"to ken{i}" for i in range(model.vocab)])
    for name, kind, shape in table.rows:
        block, block_bytes = GGML_QUANT_SIZES[kind]
        n_bytes = int(np.prod(shape, dtype=np.int64)) // block * block_bytes
        writer.add_tensor_info(name, shape[::-1], np.dtype(np.float32), n_bytes, raw_dtype=kind)
    writer.write_header_to_file(folder / f"{model.file}.gguf")
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    paths = []
    for handle, tensors in zip(writer.fout or (), writer.tensors, strict=True):
        paths.append(Path(handle.name))
        start = writer.ggml_pad(handle.tell(), writer.data_alignment)
        handle.truncate(start + sum(writer.ggml_pad(t.nbytes, writer.data_alignment) for t in tensors.values()))
        handle.seek(4)
        handle.write(model.version.to_bytes(4, "little"))
    writer.close()
    occupied = sum(getattr(path.stat(), "st_blocks", 0) * 512 for path in paths)
    if occupied > 1 << 28:
        for path in paths:
            path.unlink()
        raise OSError(f"{folder} keeps no sparse files: {paths[0].name} took {occupied} bytes")
    return paths


def main() -> int:
    """The command line; 0 when all was written."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("outdir", nargs="?", type=Path, metavar="OUTDIR")
    parser.add_argument("--only", action="append", choices=[model.file for model in MODELS], metavar="NAME")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    args = parser.parse_args()
    if args.list:
        print(*(f"{model.file:26} {model.arch:16} {model.name}" for model in MODELS), sep="\n")
        return 0
    if args.outdir is None:
        parser.error("OUTDIR is missing")
    args.outdir.mkdir(parents=True, exist_ok=True)
    for model in MODELS:
        if not args.only or model.file in args.only:
            print(*write_model(model, args.outdir), sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
