"""Layers of networks and images: convolutions, pools, normalisation, recurrent cells, coded pictures."""

import itertools

from .nodes import N, c, every, f, p, raw, some


def images():
    shapes = ([2, 8, 9, 3], [N, N, 9, 3], N)
    for padding, stride in itertools.product(("SAME", "VALID"), (1, 2)):
        for dilation in (1, 2):
            attrs = dict(strides=[1, stride, stride, 1], dilations=[1, dilation, dilation, 1], padding=padding)
            every("Conv2D", ("input", f(*shapes)), ("filter", f([3, 2, 3, 7], [N, N, 3, N], N)), **attrs)
            every("DepthwiseConv2dNative", ("input", f(*shapes)), ("filter", f([3, 2, 3, 7], [N, N, 3, N], N)), **attrs)
        window = dict(ksize=[1, 3, 2, 1], strides=[1, stride, stride, 1], padding=padding)
        every("AvgPool", ("value", f(*shapes)), **window)
        every("MaxPool", ("input", f(*shapes)), **window)
        every("MaxPoolWithArgmax", ("input", f(*shapes)), **window)
        for rate in (1, 2):
            every("ExtractImagePatches", ("images", f(*shapes, [2, 8, 9, N])), ksizes=[1, 3, 2, 1], strides=[1, stride, stride, 1],
                  rates=[1, rate, rate, 1], padding=padding)
        five = dict(strides=[1, stride, stride, stride, 1], padding=padding)
        volumes = ([2, 8, 9, 10, 3], [N, N, 9, 10, 3], N)
        every("Conv3D", ("input", f(*volumes)), ("filter", f([3, 2, 3, 3, 7], [N, 2, 3, 3, N])), **five)
        every("AvgPool3D", ("input", f(*volumes)), ksize=[1, 2, 3, 2, 1], **five)
        every("MaxPool3D", ("input", f(*volumes)), ksize=[1, 2, 3, 2, 1], **five)
    first = dict(strides=[1, 1, 2, 2], padding="VALID", data_format="NCHW")
    raw.Conv2D(input=p([2, 3, 8, N]), filter=p([3, 2, 3, 7]), **first)
    raw.MaxPool(input=p([2, 3, 8, N]), ksize=[1, 1, 3, 2], **first)
    raw.AvgPool(value=p([2, 3, 8, N]), ksize=[1, 1, 3, 2], **first)
    raw.Conv2D(input=p([2, 8, N, 3]), filter=p([3, 2, 3, 7]), strides=[1, 2, 1, 1], padding="EXPLICIT",
               explicit_paddings=[0, 0, 1, 2, 0, 3, 0, 0])
    one = dict(strides=[1, 1, 1, 1], padding="SAME")
    sizes = [lambda: c([2, 8, 9, 3]), lambda: p([4], "int32"), lambda: some([N, 8, 9, 3])]
    kernels = [lambda: c([3, 2, 3, 7]), lambda: p([4], "int32"), lambda: p(N, "int32")]
    every("Conv2DBackpropInput", ("input_sizes", sizes), ("filter", f([3, 2, 3, 7])), ("out_backprop", f([2, 8, 9, 7])), **one)
    every("Conv2DBackpropFilter", ("input", f([2, 8, 9, 3])), ("filter_sizes", kernels), ("out_backprop", f([2, 8, 9, 7])), **one)
    every("DepthwiseConv2dNativeBackpropInput", ("input_sizes", sizes), ("filter", f([3, 2, 3, 7])), ("out_backprop", f([2, 8, 9, 21])), **one)
    every("DepthwiseConv2dNativeBackpropFilter", ("input", f([2, 8, 9, 3])), ("filter_sizes", kernels), ("out_backprop", f([2, 8, 9, 21])), **one)
    every("AvgPoolGrad", ("orig_input_shape", sizes), ("grad", f([2, 8, 9, 3])), ksize=[1, 2, 2, 1], **one)
    every("MaxPoolGrad", ("orig_input", f(*shapes)), ("orig_output", f(N)), ("grad", f(N)), ksize=[1, 2, 2, 1], **one)
    every("MaxPoolGradWithArgmax", ("input", f(*shapes)), ("grad", f(N)), ("argmax", f(N, dtype="int64")), ksize=[1, 2, 2, 1], **one)
    three = dict(strides=[1] * 5, padding="SAME")
    volume, kernel = lambda: p([2, 8, 9, N, 3]), lambda: p([3, 3, 3, 3, 7])
    raw.Conv3DBackpropInput(input=volume(), filter=kernel(), out_backprop=p(N), **three)
    raw.Conv3DBackpropFilter(input=volume(), filter=kernel(), out_backprop=p(N), **three)
    every("Conv3DBackpropInputV2", ("input_sizes", [lambda: c([2, 8, 9, 4, 3]), lambda: p([5], "int32")]), ("filter", [kernel]), ("out_backprop", f(N)), **three)
    every("Conv3DBackpropFilterV2", ("input", [volume]), ("filter_sizes", [lambda: c([3, 3, 3, 3, 7]), lambda: p([5], "int32")]), ("out_backprop", f(N)), **three)
    raw.MaxPool3DGrad(orig_input=volume(), orig_output=p(N), grad=p(N), ksize=[1, 2, 2, 2, 1], **three)
    raw.MaxPool3DGradGrad(orig_input=volume(), orig_output=p(N), grad=p(N), ksize=[1, 2, 2, 2, 1], **three)
    raw.AvgPool3DGrad(orig_input_shape=c([2, 8, 9, 4, 3]), grad=p(N), ksize=[1, 2, 2, 2, 1], **three)
    every("LRN", ("input", f(*shapes)))
    every("LRNGrad", ("input_grads", f(*shapes)), ("input_image", f(*shapes)), ("output_image", f(*shapes)))
    for op in "FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3".split():
        for format in ("NHWC", "NCHW"):
            every(op, ("x", f([2, 8, 9, 3], [N, N, N, N], N)), ("scale", f([3], [N])), ("offset", f([N])), ("mean", f([0])),
                  ("variance", f([0])), data_format=format) if format == "NHWC" else every(
                  op, ("x", f([2, 3, 8, 9], N)), ("scale", f([N])), ("offset", f([N])), ("mean", f([0])), ("variance", f([0])), data_format=format)
    raw.FusedBatchNormV3(x=p([2, 4, 8, 9, 3]), scale=p([N]), offset=p([N]), mean=p([0]), variance=p([0]), data_format="NDHWC")
    for op in "FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3".split():
        more = {"reserve_space_3": p(N)} if op.endswith("V3") else {}
        for shape in ([2, 8, 9, 3], [N, N, N, N], N):
            getattr(raw, op)(y_backprop=p(shape), x=p([N, 8, N, N]), scale=p([N]), reserve_space_1=p([N]), reserve_space_2=p([N]), **more)
    size = [lambda: c([5, 6]), lambda: p([2], "int32")]
    for op in "ResizeBilinear ResizeNearestNeighbor".split():
        every(op, ("images", f(*shapes)), ("size", size))
    every("ResizeNearestNeighborGrad", ("grads", f(*shapes)), ("size", size))
    raw.ResizeBilinearGrad(grads=p([2, 5, 6, 3]), original_image=p([2, 8, N, 3]))
    edges = [lambda: c([[0, 0], [1, 2]]), lambda: p([2, 2], "int32")]
    every("SpaceToBatch", ("input", f([2, 8, 9, 3], [N, N, N, 3], N)), ("paddings", edges), block_size=2)
    every("BatchToSpace", ("input", f([8, 8, 9, 3], [N, N, N, 3], N)), ("crops", edges), block_size=2)
    block = [lambda: c([2, 3]), lambda: p([2], "int32")]
    every("SpaceToBatchND", ("input", f([2, 8, 9, 3], [N, N, N, 3], N)), ("block_shape", block), ("paddings", edges))
    every("BatchToSpaceND", ("input", f([12, 8, 9, 3], [N, N, N, 3], N)), ("block_shape", block), ("crops", edges))
    for format in ("NHWC", "NCHW"):
        every("SpaceToDepth", ("input", f([2, 4, 8, 12], [N, N, 4, N], N)), block_size=2, data_format=format)
        every("DepthToSpace", ("input", f([2, 4, 8, 12], [N, 4, N, N], N)), block_size=2, data_format=format)


def pictures():
    shapes = f([2, 8, 9, 3], [N, N, 9, N], N)
    every("RGBToHSV", ("images", shapes)), every("HSVToRGB", ("images", shapes))
    every("AdjustContrastv2", ("images", shapes), ("contrast_factor", f([])))
    every("AdjustHue", ("images", shapes), ("delta", f([]))), every("AdjustSaturation", ("images", shapes), ("scale", f([])))
    every("DrawBoundingBoxes", ("images", shapes), ("boxes", f([2, N, 4])))
    every("DrawBoundingBoxesV2", ("images", shapes), ("boxes", f([2, N, 4])), ("colors", f([N, 3])))
    size = [lambda: c([4, 5]), lambda: p([2], "int32"), lambda: some([N, 3]), lambda: p(N, "int32")]
    every("ResizeArea", ("images", shapes), ("size", size)), every("ResizeBicubic", ("images", shapes), ("size", size))
    every("ResizeBicubicGrad", ("grads", f([2, 4, 4, 3])), ("original_image", shapes))
    every("CropAndResize", ("image", shapes), ("boxes", f([5, 4], [N, 4], N)), ("box_ind", [lambda: p([N], "int32")]), ("crop_size", size))
    every("CropAndResizeGradImage", ("grads", shapes), ("boxes", f([5, 4])), ("box_ind", [lambda: p([5], "int32")]),
          ("image_size", [lambda: c([2, 3, 4, 5]), lambda: some([N, 3, 4, N]), lambda: p(N, "int32")]), T="float32")
    every("CropAndResizeGradBoxes", ("grads", shapes), ("image", shapes), ("boxes", f([5, 4], [N, 4], N)), ("box_ind", [lambda: p([N], "int32")]))
    scored = (("boxes", f([N, 4])), ("scores", f([N])), ("max_output_size", [lambda: c(3), lambda: p([], "int32")]))
    number = lambda *names: tuple((name, f([])) for name in names)
    every("NonMaxSuppression", *scored), every("NonMaxSuppressionV2", *scored, *number("iou_threshold"))
    every("NonMaxSuppressionV3", *scored, *number("iou_threshold", "score_threshold"))
    every("NonMaxSuppressionWithOverlaps", ("overlaps", f([N, N])), *scored[1:], *number("overlap_threshold", "score_threshold"))
    for pads in (False, True):
        every("NonMaxSuppressionV4", *scored, *number("iou_threshold", "score_threshold"), pad_to_max_output_size=pads)
        every("NonMaxSuppressionV5", *scored, *number("iou_threshold", "score_threshold", "soft_nms_sigma"), pad_to_max_output_size=pads)
    file = p([], "string")
    for op in ("DecodeJpeg", "DecodePng", "DecodeBmp"):
        getattr(raw, op)(contents=file), getattr(raw, op)(contents=file, channels=3)
    raw.DecodeAndCropJpeg(contents=file, crop_window=c([1, 2, 3, 4])), raw.DecodeAndCropJpeg(contents=file, crop_window=p([4], "int32"), channels=1)
    raw.DecodeGif(contents=file), raw.DecodeImage(contents=file), raw.ExtractJpegShape(contents=file), raw.EncodeJpeg(image=p([N, N, 3], "uint8"))
    every("EncodePng", ("image", f([3, 4, 3], [5, N, N, N], N, dtype="uint8")))


def recurrent():
    """Recurrent cells, and numbers that are rounded as quantization would."""
    every("FakeQuantWithMinMaxArgs", ("inputs", f([2, N], N)))
    every("FakeQuantWithMinMaxArgsGradient", ("gradients", f([2, 3], N)), ("inputs", f([2, N])))
    for kind, ends in (("", f([])), ("PerChannel", f([3], [N], N))):
        ends = [("min", ends), ("max", ends[:1])]
        every(f"FakeQuantWithMinMaxVars{kind}", ("inputs", f([2, 3], [2, N], N)), *ends)
        every(f"FakeQuantWithMinMaxVars{kind}Gradient", ("gradients", f([2, 3], N)), ("inputs", f([2, N], N)), *ends)
    ends = [("input_min", f([])), ("input_max", f([]))]
    every("QuantizeAndDequantize", ("input", f([2, N], N))), every("QuantizeAndDequantizeV2", ("input", f([2, N], N)), *ends)
    every("QuantizeAndDequantizeV3", ("input", f([2, N], N)), *ends, ("num_bits", f([], dtype="int32")))
    weights = [("w", f([6, 8])), ("wci", f([2])), ("wcf", f([2])), ("wco", f([2]))]
    inputs = [("x", f([3, 4], [N, 4], N)), ("cs_prev", f([3, 2], [N, N], N)), ("h_prev", f([3, 2])), *weights, ("b", f([8]))]
    every("LSTMBlockCell", *inputs)
    after = [(name, f([3, 2])) for name in "i cs f o ci co cs_grad h_grad".split()]
    every("LSTMBlockCellGrad", *inputs, *after, use_peephole=False)
    inputs = [("seq_len_max", f([], dtype="int64")), ("x", f([5, 3, 4], [N, 3, N], N)), ("cs_prev", f([3, 2], N)), ("h_prev", f([3, 2]))]
    inputs += [*weights, ("b", f([8], [N], N))]
    after = [(name, f([5, 3, 2])) for name in "i cs f o ci co h cs_grad h_grad".split()]
    for version in ("", "V2"):
        every(f"BlockLSTM{version}", *inputs), every(f"BlockLSTMGrad{version}", *inputs, *after, use_peephole=False)
    inputs = [("x", f([3, 4], [N, 4], N)), ("h_prev", f([3, 2], [N, N], N)), ("w_ru", f([6, 4], N)), ("w_c", f([6, 2])), ("b_ru", f([4])), ("b_c", f([2]))]
    every("GRUBlockCell", *inputs), every("GRUBlockCellGrad", *inputs, *((name, f([3, 2])) for name in ("r", "u", "c", "d_h")))
