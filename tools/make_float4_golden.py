#!/usr/bin/env python3
"""Makes the models of tests/golden/models whose name has nvfp4 or mxfp4: small random checkpoints in floats of
4 bits, as compressed-tensors and ModelOpt write them, and what they must answer.

Files, models and the check against transformers are those of make_int4_golden.py, the forms are here. The
numbers that codes and scales stand for are rounded to bf16, as the server keeps them.

Needs numpy.
Run: tools/make_float4_golden.py [--out FOLDER] [--only PART_OF_A_NAME]
"""
import argparse
import pathlib
import shutil

import numpy as np

import make_int4_golden as golden

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
# Codes 0 to 126 in order; 127 is NaN.
E4M3 = np.array([(8 + code % 8 if code >= 8 else code) * 2.0 ** (max(code // 8, 1) - 10) for code in range(127)])


class E4m3:
    type_name = "F8_E4M3"

    def __init__(self, values):
        self.bits = nearest(E4M3, values).astype(np.uint8)

    def numbers(self):
        return E4M3[self.bits].astype(np.float32)


def nearest(table, values):
    """Indexes; of two that are as near, the even one."""
    above = np.clip(np.searchsorted(table, values), 1, len(table) - 1)
    low, high = values - table[above - 1], table[above] - values
    return np.where((low < high) | ((low == high) & (above % 2 == 1)), above - 1, above)


class Form:
    storage = "bf16"

    def __init__(self, kind, config, left_out=()):
        self.kind, self.config, self.left_out = kind, config, left_out

    def covers(self, name):
        return name.endswith("_proj.weight") and not any(part in name for part in self.left_out)

    def stored(self, values):
        return golden.Bf16(values), golden.Bf16(values).numbers().astype(np.float64)

    def apply(self, name, matrix):
        """The tensors to store, and the numbers that they stand for."""
        rows, columns = matrix.shape
        parts = matrix.reshape(rows, -1, 32 if self.kind == "mxfp4" else 16)
        tensors, factors = getattr(self, self.kind)(name.removesuffix("weight"), matrix,
                                                    np.abs(parts).max(-1))
        codes = nearest(E2M1, np.minimum(np.abs(parts) / factors[..., None], 6))
        numbers = np.sign(parts) * E2M1[codes] * factors[..., None]
        codes = (codes + 8 * (parts < 0)).reshape(rows, columns).astype(np.uint8)
        packed = codes[:, ::2] | codes[:, 1::2] << 4
        tensors[name if self.kind == "modelopt" else name + "_packed"] = packed
        numbers = golden.Bf16(numbers.reshape(rows, columns)).numbers()
        return tensors, numbers.astype(np.float64)

    def nvfp4(self, module, matrix, largest):
        of_matrix = np.float32(448 * 6 / np.abs(matrix).max())
        scales = E4m3(of_matrix * largest / 6)
        return ({module + "weight_scale": scales, module + "weight_global_scale": np.array([of_matrix]),
                 module + "input_global_scale": np.array([37], np.float32)},
                scales.numbers() / of_matrix)

    def modelopt(self, module, matrix, largest):
        of_matrix = np.float32(np.abs(matrix).max() / (448 * 6))
        scales = E4m3(largest / 6 / of_matrix)
        tensors = {module + "weight_scale": scales, module + "weight_scale_2": np.array(of_matrix),
                   module + "input_scale": np.array(0.02, np.float32)}
        if "k_proj" in module:
            tensors[module + "k_scale"] = np.array(0.5, np.float32)
        return tensors, scales.numbers() * of_matrix

    def mxfp4(self, module, matrix, largest):
        powers = np.floor(np.log2(largest)).astype(np.int64) - 2
        return ({module + "weight_scale": (powers + 127).astype(np.uint8)},
                np.float32(2) ** powers.astype(np.float32))


def compressed(name, strategy, group):
    scheme = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": strategy, "group_size": group,
              "dynamic": False, "actorder": None, "block_structure": None}
    return {"quant_method": "compressed-tensors", "format": name, "quantization_status": "compressed",
            "ignore": ["lm_head"], "kv_cache_scheme": None, "sparsity_config": {}, "transform_config": {},
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": scheme, "format": name,
                                          "input_activations": {**scheme, "dynamic": "local"},
                                          "output_activations": None}}}


MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"],
            "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
            "producer": {"name": "modelopt", "version": "0.33.0"},
            "config_groups": {"group_0": {
                "targets": ["Linear"],
                "weights": {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16},
                "input_activations": {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}}}}
NVFP4 = compressed("nvfp4-pack-quantized", "tensor_group", 16)
MXFP4 = compressed("mxfp4-pack-quantized", "group", 32)
MODELS = {
    "llama-nvfp4-ct": (golden.LLAMA, 176, Form("nvfp4", NVFP4)),
    "llama-nvfp4-modelopt": (golden.LLAMA, 144, Form("modelopt", MODELOPT)),
    "qwen2-mxfp4-ct": (golden.QWEN2, 160, Form("mxfp4", MXFP4, left_out=["o_proj", "down_proj"])),
    "qwen3moe-nvfp4-modelopt": (golden.QWEN3MOE, 192, Form("modelopt", MODELOPT)),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests/golden/models")
    parser.add_argument("--only", default="", help="models whose names hold this")
    arguments = parser.parse_args()
    for seed, (name, (settings, inner, form)) in enumerate(sorted(MODELS.items())):
        if arguments.only not in name:
            continue
        folder = arguments.out / name
        shutil.rmtree(folder, ignore_errors=True)
        golden.make_model(folder, {**settings, "intermediate_size": inner}, form, seed + 401)


if __name__ == "__main__":
    main()
