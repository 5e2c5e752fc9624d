"""Ops on quantized numbers, with ranges or with scales and zero points."""

from .nodes import N, c, every, f, p


def quantized():
    def of(*names):
        return [(name, f([])) for name in names]

    q8, q32 = "quint8", "qint32"
    ends = of("min_range", "max_range")
    every("QuantizeV2", ("input", f([2, N], N)), *ends, T="qint8")
    every("QuantizeV2", ("input", f([2, 3], [N, 3], N)), ("min_range", f([3], [N])), ("max_range", f([3], [N])), T="qint8", axis=1)
    every("Dequantize", ("input", f([2, N], N, dtype="qint8")), *ends)
    given = of("input_min", "input_max")
    every("QuantizeAndDequantizeV4", ("input", f([2, N], N)), *given)
    every("QuantizeAndDequantizeV4Grad", ("gradients", f([2, 3], [2, N])), ("input", f([2, N], N)), *given)
    every("QuantizeDownAndShrinkRange", ("input", f([2, N], N, dtype=q32)), *given, out_type=q8)
    every("RequantizationRange", ("input", f([2, N], N, dtype=q32)), *given)
    every("Requantize", ("input", f([2, N], N, dtype=q32)), *given, *of("requested_output_min", "requested_output_max"), out_type=q8)
    channels = [("input_min", f([3])), ("input_max", f([3]))]
    images = ("input", f([2, 4, 5, 3], N, dtype=q32))
    every("RequantizationRangePerChannel", images, *channels, clip_value_max=1.0)
    every("RequantizePerChannel", images, *channels, *of("requested_output_min", "requested_output_max"), out_type=q8)
    for op in "QuantizedAdd QuantizedMul".split():
        every(op, ("x", f([2, 3], [N, 3], N, dtype=q8)), ("y", f([3], [2, N], N, dtype=q8)), *of("min_x", "max_x", "min_y", "max_y"))
    every("QuantizedBiasAdd", ("input", f([2, N], N, dtype=q8)), ("bias", f([3], dtype=q8)),
          *of("min_input", "max_input", "min_bias", "max_bias"), out_type=q32)
    for op in "QuantizedRelu QuantizedRelu6".split():
        every(op, ("features", f([2, N], N, dtype=q8)), *of("min_features", "max_features"))
    every("QuantizedReshape", ("tensor", f([2, 6], [N, 6], dtype=q8)), ("shape", [lambda: c([3, 4]), lambda: c([-1]), lambda: p([2], "int32")]),
          *given)
    for axis in (0, 1):
        every("QuantizedConcat", ("concat_dim", [lambda: c(axis)]), ("values", [lambda: [p([2, 3], q8), p([2, N], q8)]]),
              ("input_mins", [lambda: [p([]), p([])]]), ("input_maxes", [lambda: [p([]), p([])]]))
    for a in (False, True):
        every("QuantizedMatMul", ("a", f([3, 3], [N, 3], N, dtype=q8)), ("b", f([3, 4], [3, N], N, dtype=q8)),
              *of("min_a", "max_a", "min_b", "max_b"), transpose_a=a)
    for padding in ("SAME", "VALID"):
        every("QuantizedConv2D", ("input", f([2, 8, 9, 3], [N, 8, N, 3], N, dtype=q8)), ("filter", f([3, 2, 3, 4], N, dtype=q8)),
              *of("min_input", "max_input", "min_filter", "max_filter"), strides=[1, 2, 2, 1], padding=padding)
        for op in "QuantizedMaxPool QuantizedAvgPool".split():
            every(op, ("input", f([2, 8, 9, 3], [N, 8, N, 3], N, dtype=q8)), *of("min_input", "max_input"), ksize=[1, 2, 3, 1],
                  strides=[1, 2, 1, 1], padding=padding)
    every("QuantizedResizeBilinear", ("images", f([2, 8, 9, 3], N, dtype=q8)), ("size", [lambda: c([4, 5]), lambda: p([2], "int32")]),
          *of("min", "max"))
    every("QuantizedInstanceNorm", ("x", f([2, 8, 9, 3], N, dtype=q8)), *of("x_min", "x_max"))
    moments = [part for name in ("m", "v", "beta", "gamma") for part in [(name, f([3], dtype=q8)), *of(f"{name}_min", f"{name}_max")]]
    every("QuantizedBatchNormWithGlobalNormalization", ("t", f([2, 8, 9, 3], [N, 8, 9, 3], dtype=q8)), *of("t_min", "t_max"), *moments,
          out_type=q32, variance_epsilon=0.1, scale_after_normalization=True)


def uniform():
    def scaled(*names):
        return [part for name in names for part in ((f"{name}scales", f([])), (f"{name}zero_points", f([], dtype="int32")))]

    def limits(*names):
        return {f"{name}quantization_{end}_val": value for name in names for end, value in (("min", -128), ("max", 127))}

    every("UniformQuantize", ("input", f([2, N], N)), *scaled(""), Tout="qint8", **limits(""))
    every("UniformDequantize", ("input", f([2, N], N, dtype="qint8")), *scaled(""), Tout="float32", **limits(""))
    every("UniformRequantize", ("input", f([2, N], N, dtype="qint8")), *scaled("input_", "output_"), Tout="qint8",
          **limits("input_", "output_"))
    sides = ("lhs_", "rhs_", "output_")
    numbers = ("lhs", f([2, 3], [N, 3], N, dtype="qint32")), ("rhs", f([3], [2, N], N, dtype="qint32"))
    every("UniformQuantizedAdd", *numbers, *scaled(*sides), **limits(*sides))
    every("UniformQuantizedClipByValue", ("operand", f([2, N], N, dtype="qint32")), ("min", f([], dtype="qint32")),
          ("max", f([], dtype="qint32")), *scaled(""), **limits(""))
    rhs = ("rhs", f([3, 4], [3, N], N, dtype="qint8"))
    every("UniformQuantizedDot", ("lhs", f([2, 3], [N, 3], N, dtype="qint8")), rhs, *scaled(*sides), Tout="qint32", **limits(*sides))
    every("UniformQuantizedDotHybrid", ("lhs", f([2, 3], [N, 3], N)), rhs, *scaled("rhs_"), Tout="float32", **limits("rhs_"))
    filters = ("rhs", f([4, 3, 2, 3], dtype="qint8"))
    every("UniformQuantizedConvolution", ("lhs", f([2, 3, 8, 9], dtype="qint8")), filters, *scaled(*sides), Tout="qint32",
          padding="SAME", **limits(*sides))
    every("UniformQuantizedConvolutionHybrid", ("lhs", f([2, 3, 8, 9])), filters, *scaled("rhs_"), Tout="float32", padding="SAME",
          **limits("rhs_"))
