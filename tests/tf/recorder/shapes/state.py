"""What outlives a step: variables, queues, accumulators, tensor arrays, files, tables, lists, datasets."""

import itertools
import re

import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.python.framework import op_def_registry

from .nodes import N, TABLE, c, every, f, p, raw, some, tf1


def state():
    one = lambda: raw.VariableV2(shape=[4, 3], dtype="float32")
    handle = lambda: raw.VarHandleOp(shape=[N, 3], dtype="float32")
    raw.Variable(shape=[], dtype="float32"), raw.Variable(shape=[2], dtype="float32")
    raw.ReadVariableOp(resource=handle(), dtype="float32"), raw.VariableShape(input=handle())
    raw.ReadVariableOp(resource=raw.Identity(input=handle()), dtype="float32")
    raw.IsVariableInitialized(ref=one()), raw.VarIsInitializedOp(resource=handle()), raw.DestroyResourceOp(resource=handle())
    raw.FakeParam(dtype="float32", shape=[2, 3]), raw.FakeParam(dtype="string", shape=tf.TensorShape(None))
    open_ = raw.VariableV2(shape=tf.TensorShape(None), dtype="float32")
    for ref in (one, lambda: open_):
        for value in ([4, 3], [N, 3], N):
            raw.Assign(ref=ref(), value=p(value)), raw.AssignAdd(ref=ref(), value=p(value)), raw.AssignSub(ref=ref(), value=p(value))
            raw.Assign(ref=ref(), value=p(value), validate_shape=False)
    raw.CountUpTo(ref=raw.VariableV2(shape=[], dtype="int32"), limit=3)
    raw.ResourceCountUpTo(resource=raw.VarHandleOp(shape=[], dtype="int32"), limit=3, T="int32")
    for op in "Add Max Min Sub Update".split():
        getattr(raw, "ScatterNd" + op)(ref=one(), indices=p([2, 1], "int32"), updates=p([2, 3]))
        getattr(raw, "ResourceScatterNd" + op)(ref=handle(), indices=p([2, 1], "int32"), updates=p([2, 3]))
    ends = dict(begin=c([0]), end=c([2]), strides=c([1]), value=p([2, 3]))
    raw.StridedSliceAssign(ref=one(), **ends), raw.ResourceStridedSliceAssign(ref=handle(), **ends)
    for op in "Add Div Max Min Mul Sub Update".split():
        getattr(raw, "Scatter" + op)(ref=one(), indices=p([2], "int32"), updates=p([2, 3]))
        getattr(raw, "ResourceScatter" + op)(resource=handle(), indices=p([2], "int32"), updates=p([2, 3]))
    every("ResourceGather", ("resource", [handle]), ("indices", f([], [2, N], N, dtype="int32")), dtype="float32")
    every("ResourceGatherNd", ("resource", [handle]), ("indices", f([1], [3, 2], [2, N], N, dtype="int32")), dtype="float32")
    s = lambda: p([])
    slot = lambda **more: dict(var=one(), lr=s(), grad=p([4, 3]), **more)
    raw.ApplyGradientDescent(var=one(), alpha=s(), delta=p([4, 3]))
    raw.ApplyProximalGradientDescent(var=one(), alpha=s(), l1=s(), l2=s(), delta=p([4, 3]))
    raw.ApplyAdaMax(m=one(), v=one(), beta1_power=s(), beta1=s(), beta2=s(), epsilon=s(), **slot())
    both = lambda: dict(gradient_accumulator=one(), gradient_squared_accumulator=one(), l1=s(), l2=s(), global_step=p([], "int64"))
    raw.ApplyAdagradDA(**both(), **slot())
    raw.ApplyAdadelta(accum=one(), accum_update=one(), rho=s(), epsilon=s(), **slot())
    raw.ApplyAdagrad(accum=one(), **slot()), raw.ApplyAdagradV2(accum=one(), epsilon=s(), **slot())
    raw.ApplyAdam(m=one(), v=one(), beta1_power=s(), beta2_power=s(), beta1=s(), beta2=s(), epsilon=s(), **slot())
    raw.ApplyAddSign(m=one(), alpha=s(), sign_decay=s(), beta=s(), **slot())
    raw.ApplyPowerSign(m=one(), logbase=s(), sign_decay=s(), beta=s(), **slot())
    raw.ApplyCenteredRMSProp(mg=one(), ms=one(), mom=one(), rho=s(), momentum=s(), epsilon=s(), **slot())
    raw.ApplyRMSProp(ms=one(), mom=one(), rho=s(), momentum=s(), epsilon=s(), **slot())
    raw.ApplyFtrl(accum=one(), linear=one(), l1=s(), l2=s(), lr_power=s(), **slot())
    raw.ApplyFtrlV2(accum=one(), linear=one(), l1=s(), l2=s(), l2_shrinkage=s(), lr_power=s(), **slot())
    raw.ApplyMomentum(accum=one(), momentum=s(), **slot())
    raw.ApplyProximalAdagrad(accum=one(), l1=s(), l2=s(), **slot())
    sparse = lambda **more: dict(var=one(), lr=s(), grad=p([2, 3]), indices=p([2], "int32"), **more)
    raw.SparseApplyAdagrad(accum=one(), **sparse()), raw.SparseApplyAdagradV2(accum=one(), epsilon=s(), **sparse())
    raw.SparseApplyAdagradDA(**both(), **sparse())
    raw.SparseApplyFtrl(accum=one(), linear=one(), l1=s(), l2=s(), lr_power=s(), **sparse())
    raw.SparseApplyFtrlV2(accum=one(), linear=one(), l1=s(), l2=s(), l2_shrinkage=s(), lr_power=s(), **sparse())
    raw.SparseApplyMomentum(accum=one(), momentum=s(), **sparse())
    raw.SparseApplyProximalAdagrad(accum=one(), l1=s(), l2=s(), **sparse())
    raw.SparseApplyProximalGradientDescent(var=one(), alpha=s(), l1=s(), l2=s(), grad=p([2, 3]), indices=p([2], "int32"))
    raw.SparseApplyRMSProp(ms=one(), mom=one(), rho=s(), momentum=s(), epsilon=s(), **sparse())

    types = dict(dtypes=["float32", "int32"], shapes=[[2, 3], []])
    for queue in (tf.queue.FIFOQueue(9, **types), tf.queue.RandomShuffleQueue(9, 1, **types), tf.queue.FIFOQueue(9, ["float32"]),
                  tf.queue.PaddingFIFOQueue(9, dtypes=["float32", "int32"], shapes=[[N, 3], []]),
                  tf.queue.PriorityQueue(9, types=["float32"], shapes=[[2]])):
        queue.dequeue(), queue.dequeue_many(5), queue.dequeue_many(p([], "int32")), queue.dequeue_up_to(5)
        queue.size(), queue.is_closed()
    old = dict(component_types=["float32"], shapes=[[2]])
    raw.FIFOQueue(**old), raw.PaddingFIFOQueue(**old), raw.RandomShuffleQueue(**old), raw.PriorityQueue(component_types=["float32"], shapes=[[2]])
    queue = raw.FIFOQueue(**old)
    raw.QueueSize(handle=queue), raw.QueueIsClosed(handle=queue)
    accumulator = tf1.ConditionalAccumulator("float32", shape=[2, N])
    accumulator.take_grad(2), accumulator.num_accumulated()
    sparse_accumulator = tf1.SparseConditionalAccumulator("float32", shape=[2, N])
    sparse_accumulator.take_grad(2), raw.SparseConditionalAccumulator(dtype="float32", shape=[2])
    raw.ResourceConditionalAccumulator(dtype="float32", shape=[2]), raw.ConditionalAccumulator(dtype="float32", shape=[2])
    file, name = c("file", "string"), c("name", "string")
    raw.Restore(file_pattern=file, tensor_name=name, dt="float32")
    raw.RestoreSlice(file_pattern=file, tensor_name=name, shape_and_slice=p([], "string"), dt="float32")
    raw.RestoreV2(prefix=file, tensor_names=p([1], "string"), shape_and_slices=p([1], "string"), dtypes=["float32"])
    types = dict(dtypes=["float32", "int32"])
    raw.StageSize(**types), raw.StagePeek(index=c(0), **types), raw.Unstage(**types)
    for kind in ("", "Ordered"):
        of_map = lambda what, **inputs: getattr(raw, f"{kind}Map{what}")(**inputs, **types)
        of_map("Size"), of_map("IncompleteSize"), of_map("UnstageNoKey", indices=c([0, 1]))
        of_map("Peek", key=c(0, "int64"), indices=c([0, 1])), of_map("Unstage", key=c(0, "int64"), indices=c([0, 1]))
    stack = raw.StackV2(max_size=c(-1), elem_type="float32")
    raw.StackPushV2(handle=stack, elem=p([2, N])), raw.StackPopV2(handle=stack, elem_type="float32")
    stack = raw.Stack(elem_type="float32")
    raw.StackPush(handle=stack, elem=p([2, N])), raw.StackPop(handle=stack, elem_type="float32")
    for identical, shape in itertools.product((False, True), ([2, N], N)):
        handle, flow = raw.TensorArrayV3(size=c(3), dtype="float32", element_shape=shape, identical_element_shapes=identical)
        for array in (handle, raw.TensorArrayGradV3(handle=handle, flow_in=flow, source="s")[0]):
            raw.TensorArrayReadV3(handle=array, index=c(0), flow_in=flow, dtype="float32")
            raw.TensorArrayGatherV3(handle=array, indices=c([0, 1]), flow_in=flow, dtype="float32")
            raw.TensorArrayGatherV3(handle=array, indices=p([N], "int32"), flow_in=flow, dtype="float32", element_shape=[2, 4])
        raw.TensorArrayConcatV3(handle=handle, flow_in=flow, dtype="float32"), raw.TensorArraySizeV3(handle=handle, flow_in=flow)
        raw.TensorArrayConcatV3(handle=handle, flow_in=flow, dtype="float32", element_shape_except0=[3])
        raw.TensorArrayWriteV3(handle=handle, index=c(0), value=p([2, 4]), flow_in=flow)
        raw.TensorArrayScatterV3(handle=handle, indices=c([0]), value=p([1, 2, 4]), flow_in=flow)
        raw.TensorArraySplitV3(handle=handle, value=p([3, 4]), lengths=p([2], "int64"), flow_in=flow)
    array, flow = raw.TensorArrayV2(size=c(3), dtype="float32", element_shape=[2]), p([])
    raw.TensorArrayReadV2(handle=array, index=c(0), flow_in=flow, dtype="float32")
    raw.TensorArrayGatherV2(handle=array, indices=c([0]), flow_in=flow, dtype="float32")
    raw.TensorArrayConcatV2(handle=array, flow_in=flow, dtype="float32"), raw.TensorArraySizeV2(handle=array, flow_in=flow)
    raw.TensorArrayGradV2(handle=array, flow_in=flow, source="s")
    raw.TensorArrayWriteV2(handle=array, index=c(0), value=p([2]), flow_in=flow)
    raw.TensorArrayScatterV2(handle=array, indices=c([0]), value=p([1, 2]), flow_in=flow)
    raw.TensorArraySplitV2(handle=array, value=p([3, 4]), lengths=p([2], "int64"), flow_in=flow)


def files():
    raw.ReadFile(filename=p([], "string")), raw.MatchingFiles(pattern=p([], "string")), raw.MatchingFiles(pattern=p([3], "string"))
    old_queue, queue = raw.FIFOQueue(component_types=["string"]), raw.FIFOQueueV2(component_types=["string"])
    raw.WholeFileReaderV2(), raw.IdentityReaderV2(), raw.TFRecordReaderV2(), raw.RecordInput(file_pattern="x")
    raw.FixedLengthRecordReaderV2(record_bytes=3)
    old, reader = raw.WholeFileReader(), raw.TextLineReaderV2()
    raw.ReaderRead(reader_handle=old, queue_handle=old_queue), raw.ReaderReadV2(reader_handle=reader, queue_handle=queue)
    raw.ReaderReadUpTo(reader_handle=old, queue_handle=old_queue, num_records=p([], "int64"))
    raw.ReaderReadUpToV2(reader_handle=reader, queue_handle=queue, num_records=p([], "int64"))
    raw.ReaderNumRecordsProduced(reader_handle=old), raw.ReaderNumRecordsProducedV2(reader_handle=reader)
    raw.ReaderNumWorkUnitsCompleted(reader_handle=old), raw.ReaderNumWorkUnitsCompletedV2(reader_handle=reader)
    raw.ReaderSerializeState(reader_handle=old), raw.ReaderSerializeStateV2(reader_handle=reader)


def tables():
    keys = lambda *shapes: [lambda shape=shape: p(shape, "int64") for shape in shapes]
    held = dict(key_dtype="int64", value_dtype="float32")
    empty = lambda value: dict(empty_key=value(0), deleted_key=value(1), value_dtype="float32")
    made = [
        (raw.HashTableV2(**held), []), (raw.MutableHashTableV2(**held), []), (raw.MutableHashTableOfTensorsV2(value_shape=[N], **held), [2]),
        (raw.MutableDenseHashTableV2(**empty(lambda key: c(key, "int64"))), []),
        (raw.MutableDenseHashTableV2(value_shape=[3], **empty(lambda key: c([key, key], "int64"))), [3]),
        (raw.MutableDenseHashTableV2(value_shape=[3], **empty(lambda key: p(N, "int64"))), [3]),
    ]
    for table, shape in made:
        every("LookupTableFindV2", ("table_handle", [lambda: table]), ("keys", keys([4, 2], [N, 2], N)), ("default_value", f(shape)))
        raw.LookupTableExportV2(table_handle=table, Tkeys="int64", Tvalues="float32"), raw.LookupTableSizeV2(table_handle=table)
    old = raw.HashTable(**held)
    raw.MutableHashTable(**held), raw.MutableHashTableOfTensors(**held), raw.MutableDenseHashTable(empty_key=c(0, "int64"), value_dtype="float32")
    raw.LookupTableFind(table_handle=old, keys=p([2], "int64"), default_value=p([]))
    raw.LookupTableExport(table_handle=old, Tkeys="int64", Tvalues="float32"), raw.LookupTableSize(table_handle=old)


def lists():
    shapes = [lambda: c([2, 3]), lambda: c(-1), lambda: p([2], "int32"), lambda: some([N, 3])]
    for shape in shapes:
        made = lambda: raw.EmptyTensorList(element_shape=c(-1), max_num_elements=c(-1), element_dtype="float32")
        raw.TensorListReserve(element_shape=shape(), num_elements=c(2), element_dtype="float32")
        raw.TensorListPopBack(input_handle=made(), element_shape=shape(), element_dtype="float32")
        raw.TensorListGetItem(input_handle=made(), index=c(0), element_shape=shape(), element_dtype="float32")
        raw.TensorListStack(input_handle=made(), element_shape=shape(), element_dtype="float32")
        raw.TensorListStack(input_handle=made(), element_shape=shape(), element_dtype="float32", num_elements=4)
        raw.TensorListGather(input_handle=made(), indices=c([0, 1]), element_shape=shape(), element_dtype="float32")
        raw.TensorListConcatV2(input_handle=made(), element_shape=shape(), leading_dims=p([N], "int64"), element_dtype="float32")
        raw.TensorListFromTensor(tensor=p([5, 2, 3]), element_shape=shape())
        raw.TensorListScatter(tensor=p([5, 2, 3]), indices=p([5], "int32"), element_shape=shape())
        raw.TensorListScatterV2(tensor=p([5, 2, 3]), indices=p([5], "int32"), element_shape=shape(), num_elements=c(-1))
    raw.TensorListConcat(input_handle=made(), element_dtype="float32"), raw.TensorListConcat(input_handle=made(), element_dtype="float32", element_shape=[N, 3])
    raw.TensorListPushBack(input_handle=made(), tensor=p([2])), raw.TensorListLength(input_handle=made())
    raw.TensorListSetItem(input_handle=made(), index=c(0), item=p([2])), raw.TensorListResize(input_handle=made(), size=c(3))
    raw.TensorListConcatLists(input_a=made(), input_b=made(), element_dtype="float32")
    raw.TensorListElementShape(input_handle=made(), shape_type="int32")
    raw.TensorListScatterIntoExistingList(input_handle=made(), tensor=p([1, 2]), indices=c([0]))
    raw.TensorListSplit(tensor=p([4, 2]), element_shape=c(-1), lengths=p([2], "int64"))
    optional = raw.OptionalFromValue(components=[p([2]), p([])])
    raw.OptionalHasValue(optional=optional), raw.OptionalNone()
    raw.OptionalGetValue(optional=optional, output_types=["float32", "float32"], output_shapes=[[2], N])


def datasets():
    """Each op of datasets and iterators, with whatever its definition asks for."""
    attrs = {
        "output_types": ["float32", "int64"], "Toutput_types": ["float32", "int64"], "output_shapes": [[2, N], N], "shared_name": "",
        "container": "", "serialized_options": "", "metadata": "", "num_experiments": 1, "sparse_keys": [], "sparse_types": [],
        "dense_keys": ["a", "b"], "dense_shapes": [[2], [3]], "devices": ["/cpu:0"],
    }
    dataset = raw.RangeDataset(start=c(0, "int64"), stop=c(3, "int64"), step=c(1, "int64"), output_types=["int64"], output_shapes=[[]])
    iterator = raw.IteratorV2(shared_name="", container="", output_types=["int64"], output_shapes=[[]])
    given = {types_pb2.DT_VARIANT: dataset, types_pb2.DT_RESOURCE: iterator, types_pb2.DT_STRING: c("", "string"), types_pb2.DT_BOOL: c(True, "bool"), types_pb2.DT_FLOAT: c(1.0, "float32")}
    given[types_pb2.DT_INT32] = c(0, "int32")
    with open(TABLE) as table:
        names = [line.split("(")[0] for line in table if re.match(r"\w*(Dataset|Iterator|Dummy)", line) and "func" not in line.partition("|")[2]]
    for name in names:
        definition = op_def_registry.get(name)
        inferred = [arg.type_list_attr for arg in definition.input_arg]
        arguments = {attr.name: attrs[attr.name] for attr in definition.attr if attr.name in attrs and attr.name not in inferred}
        for arg in definition.input_arg:
            if arg.type_list_attr:
                arguments[arg.name] = [p([5, 2, N]), c(0, "int64") if name.startswith("PaddedBatch") else p([5, 3], "int64")]
            elif arg.number_attr:
                arguments[arg.name] = [dataset] * 2 if arg.type == types_pb2.DT_VARIANT else [c([-1], "int64")] * 2
            else:
                arguments[arg.name] = given.get(arg.type, c(1, "int64"))
        if "CSV" in name:
            arguments["record_defaults"] = [c([0.0], "float32"), c([0], "int64")]
            arguments.update({each: c([0, 1], "int64") for each in ("select_cols", "exclude_cols") if each in arguments})
        if "transformations" in arguments:
            arguments["transformations"] = c(["Map"], "string")
        if "row_shape" in arguments:
            arguments["row_shape"] = c([2, -1], "int64")
        if name.startswith("PaddedBatch"):
            arguments["padding_values"] = [c(0.0, "float32"), c(0, "int64")]
        getattr(raw, name)(**arguments)
