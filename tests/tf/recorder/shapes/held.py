"""Mutexes, maps, writers, handles of sessions, and the debugger's ops."""

from .nodes import N, c, every, f, p, raw


def held():
    mutex = raw.MutexV2(shared_name="", container="")
    raw.MutexLock(mutex=mutex), raw.SummaryWriter(shared_name="", container=""), raw.Timestamp(), raw.Fact()
    every("CheckNumericsV2", ("tensor", f([2, N], N)), message="m")
    every("Copy", ("input", f([2, N], N))), every("CopyHost", ("input", f([2, N], N)))
    every("DebugIdentity", ("input", f([2, N], N)), tensor_name="x:0"), every("DebugIdentityV2", ("input", f([2, N], N)))
    every("DebugIdentityV3", ("input", f([2, N], N)), tensor_name="x:0"), every("DebugNanCount", ("input", f([2, N])), tensor_name="x:0")
    every("DebugGradientIdentity", ("input", f([2, N], N))), every("GuaranteeConst", ("input", f([2, N], N)))
    every("DebugNumericSummary", ("input", f([2, N])), tensor_name="x:0"), every("DebugNumericSummaryV2", ("input", f([2, N])), tensor_debug_mode=2)
    every("ToBool", ("input", f([2, N], [], N))), every("DecodeJSONExample", ("json_examples", f([2, N], [], N, dtype="string")))
    raw.GetSessionHandle(value=p([2])), raw.GetSessionHandleV2(value=p([2])), raw.GetSessionTensor(handle=p([], "string"), dtype="float32")
    kinds = dict(key_dtype="int64", value_dtype="float32")
    raw.AnonymousHashTable(**kinds), raw.AnonymousMutableHashTable(**kinds), raw.AnonymousMutableHashTableOfTensors(value_shape=[2], **kinds)
    raw.AnonymousMutableDenseHashTable(empty_key=c(0, "int64"), deleted_key=c(1, "int64"), value_dtype="float32")
    a_map = raw.TensorMapInsert(input_handle=raw.EmptyTensorMap(), key=p([], "int64"), value=p([2]))
    raw.TensorMapErase(input_handle=a_map, key=p([], "int64"), value_dtype="float32"), raw.TensorMapSize(input_handle=a_map)
    raw.TensorMapHasKey(input_handle=a_map, key=p([], "int64")), raw.TensorMapStackKeys(input_handle=a_map, key_dtype="int64")
    raw.TensorMapLookup(input_handle=a_map, key=p([], "int64"), value_dtype="float32")
    raw.FakeQueue(resource=raw.FIFOQueueV2(component_types=["float32"])), raw.ImmutableConst(dtype="float32", shape=[2, 3], memory_region_name="f")
    one = lambda: raw.VariableV2(shape=[4, 3], dtype="float32")
    raw.RefSelect(index=c(0), inputs=[one(), one()]), raw.DebugGradientRefIdentity(input=one())
    handle, flow = raw.TensorArrayV3(size=c(3), dtype="float32", element_shape=[2], identical_element_shapes=True)
    raw.TensorArrayGradWithShape(handle=handle, flow_in=flow, shape_to_prepend=c([3]), source="s")
    lists = raw.Pack(values=[raw.EmptyTensorList(element_shape=c(-1), max_num_elements=c(-1), element_dtype="float32")] * 2, axis=0)
    raw.TensorListPushBackBatch(input_handles=lists, tensor=p([2, 3]))
    sizes = dict(num_batch_threads=1, max_batch_size=2, batch_timeout_micros=1, grad_timeout_micros=1)
    batch = raw.Batch(in_tensors=[p([2, N]), p([N]), p(N)], **sizes)
    raw.Unbatch(batched_tensor=p([2, N]), batch_index=batch.batch_index, id=batch.id, timeout_micros=1)
    raw.Unbatch(batched_tensor=p(N), batch_index=batch.batch_index, id=batch.id, timeout_micros=1)
    raw.UnbatchGrad(original_input=p([2, N]), batch_index=batch.batch_index, grad=p([N, 3]), id=batch.id)

    kind = dict(output_types=["float32", "int64"], output_shapes=[[2, N], N])
    dataset = raw.RangeDataset(start=c(0, "int64"), stop=c(3, "int64"), step=c(1, "int64"), output_types=["int64"], output_shapes=[[]])
    raw.GetElementAtIndex(dataset=dataset, index=c(1, "int64"), **kind)
    raw.UncompressElement(compressed=raw.CompressElement(components=[p([2]), p([])]), **kind)
    raw.AnonymousMemoryCache(), raw.AnonymousSeedGenerator(seed=c(1, "int64"), seed2=c(1, "int64"), reshuffle=c(True, "bool"))
    raw.ThreadPoolHandle(num_threads=1, display_name="p")


def sampled():
    """Parts and views of images, and sounds."""
    images = f([2, 8, 9, 3], [N, 8, N, N], N)
    sizes = [lambda: c([2, 3]), lambda: p([2], "int32")]
    view = (("images", images), ("transforms", f([1, 8], N)), ("output_shape", sizes))
    every("ImageProjectiveTransformV2", *view, interpolation="NEAREST")
    every("ImageProjectiveTransformV3", *view, ("fill_value", f([])), interpolation="NEAREST")
    pair = (("scale", f([2])), ("translation", f([2])))
    every("ScaleAndTranslate", ("images", images), ("size", sizes), *pair)
    every("ScaleAndTranslateGrad", ("grads", f([2, 8, 9, 3])), ("original_image", images), *pair)
    boxes = dict(image_size=p([3], "int32"), bounding_boxes=p([1, N, 4]))
    raw.SampleDistortedBoundingBox(**boxes), raw.SampleDistortedBoundingBoxV2(min_object_covered=p([]), **boxes)
    raw.StatelessSampleDistortedBoundingBox(min_object_covered=p([]), seed=p([2], "int32"), **boxes)
    limits = dict(iou_threshold=p([]), score_threshold=p([]))
    for most in (c(5), p([], "int32")):
        for pads in (False, True):
            raw.CombinedNonMaxSuppression(boxes=p([2, 7, 1, 4]), scores=p([2, 7, 3]), max_output_size_per_class=c(4), max_total_size=most, pad_per_class=pads, **limits)
    raw.CombinedNonMaxSuppression(boxes=p([N, N, N, 4]), scores=p([N, N, N]), max_output_size_per_class=c(4), max_total_size=c(5), **limits)
    for padding in ("SAME", "VALID"):
        some = dict(mode="REFLECT", strides=[1, 2, 1, 1], padding=padding)
        filters = ("filter", f([3, 2, 3, 5], [N, 2, 3, 5]))
        pads = ("paddings", [lambda: c([[0, 0], [1, 2], [0, 1], [0, 0]]), lambda: p([4, 2], "int32")])
        every("FusedPadConv2D", ("input", f([2, 8, 9, 3], [N, 8, N, 3])), pads, filters, **some)
        every("FusedResizeAndPadConv2D", ("input", f([2, 8, 9, 3], [N, 8, N, 3])), ("size", sizes), pads, filters, **some)
    raw.EncodeJpegVariableQuality(images=p([4, 4, 3], "uint8"), quality=p([], "int32"))
    every("AudioSpectrogram", ("input", f([100, 2], [N, 2], [100, N])), window_size=16, stride=8)
    every("Mfcc", ("spectrogram", f([2, 10, 9], [N, N, 9])), ("sample_rate", f([], dtype="int32")))
    raw.DecodeWav(contents=p([], "string")), raw.DecodeWav(contents=p([], "string"), desired_channels=2, desired_samples=9)
    raw.EncodeWav(audio=p([9, 2]), sample_rate=p([], "int32"))
