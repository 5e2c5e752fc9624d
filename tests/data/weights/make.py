"""Makes the files of this folder: python make.py, with numpy, safetensors, h5py and gguf; python make.py keras, with
TensorFlow, makes keras.h5, dense.keras, saved and signatures.

`expected.json` has the tensors of each file, as the tools that wrote it read them. PyTorch's files are written by Python's pickle
and zipfile in the documented form of torch.save, since they need to be made without PyTorch, too.
"""

import collections
import io
import json
import pathlib
import pickle
import struct
import sys
import zipfile

import numpy as np

W = (np.arange(6, dtype=np.float32).reshape(2, 3) - 2.5) / 4
expected = {}


def note(file, name, array, stored=None):
    array = np.asarray(array)
    values = array.astype(np.float64) if array.dtype.kind == "f" else array.astype(np.int64)
    entry = {"name": name, "shape": list(array.shape), "dtype": str(array.dtype), "values": values.ravel().tolist()}
    expected.setdefault(file, []).append(entry | ({"stored": stored} if stored else {}))


def arrays():
    from safetensors.numpy import save_file

    save_file({"w": W, "half": W.astype(np.float16), "n": np.array(7, np.int64)}, "a.safetensors", metadata={"format": "np"})
    for name, array in sorted({"w": W, "half": W.astype(np.float16), "n": np.array(7, np.int64)}.items()):
        note("a.safetensors", name, array)
    save_file({"w": W}, "part-1.safetensors")
    save_file({"b": W[0]}, "part-2.safetensors")
    index = {"metadata": {"total_size": 36}, "weight_map": {"b": "part-2.safetensors", "w": "part-1.safetensors"}}
    json.dump(index, open("model.safetensors.index.json", "w"))
    note("model.safetensors.index.json", "b", W[0])
    note("model.safetensors.index.json", "w", W)
    np.save("w.npy", np.asfortranarray(W))
    note("w.npy", "array", W)
    np.savez("a.npz", w=W, n=np.array([1, 2], np.int32))
    np.savez_compressed("packed.npz", w=W, n=np.array([1, 2], np.int32))
    for file in ["a.npz", "packed.npz"]:
        note(file, "w", W)
        note(file, "n", np.array([1, 2], np.int32))


class Named:
    """A class or function of torch, by its name alone."""

    def __init__(self, module, name):
        self.module, self.name = module, name


class Storage:
    def __init__(self, kind, key, array):
        self.kind, self.key, self.array = kind, key, array


class Tensor:
    def __init__(self, storage, offset, size, stride):
        self.args = (storage, offset, size, stride, False, collections.OrderedDict())


class Called:
    def __init__(self, function, args):
        self.function, self.args = function, args


class TorchPickler(pickle._Pickler):
    """torch.save's pickler: storages by persistent ids, tensors as calls."""

    legacy = False

    def persistent_id(self, obj):
        if isinstance(obj, Storage):
            view = (None,) if self.legacy else ()
            return ("storage", Named("torch", obj.kind), obj.key, "cpu", obj.array.size) + view
        return None

    def save(self, obj, save_persistent_id=True):
        if isinstance(obj, Named):
            return self.write(b"c" + f"{obj.module}\n{obj.name}\n".encode())
        if isinstance(obj, Tensor):
            obj = Called(Named("torch._utils", "_rebuild_tensor_v2"), obj.args)
        if isinstance(obj, Called):
            self.save(obj.function)
            super().save(obj.args)
            return self.write(b"R")
        return super().save(obj, save_persistent_id)


def dumped(obj, legacy=False):
    file = io.BytesIO()
    pickler = TorchPickler(file, protocol=2)
    pickler.legacy = legacy
    pickler.dump(obj)
    return file.getvalue()


def torch():
    weight = Storage("FloatStorage", "0", W)
    half = Storage("HalfStorage", "1", W.astype(np.float16))
    count = Storage("LongStorage", "2", np.array([7], np.int64))
    storages = [weight, half, count]
    state = collections.OrderedDict()
    state["fc.weight"] = Tensor(weight, 0, (2, 3), (3, 1))
    # A view of the same storage: its transpose, and its second row.
    state["fc.turned"] = Tensor(weight, 0, (3, 2), (1, 3))
    state["fc.row"] = Tensor(weight, 3, (3,), (1,))
    state["half"] = Called(Named("torch._utils", "_rebuild_parameter"), (Tensor(half, 0, (2, 3), (3, 1)), True, collections.OrderedDict()))
    state["steps"] = Tensor(count, 0, (), ())
    whole = {"model": state, "epoch": 3}
    for file, prefix, value in [("state.pt", "", state), ("nested.pt", "model.", whole)]:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr("archive/data.pkl", dumped(value))
            archive.writestr("archive/byteorder", "little")
            for storage in storages:
                archive.writestr(f"archive/data/{storage.key}", storage.array.tobytes())
            archive.writestr("archive/version", "3\n")
        note(file, prefix + "fc.weight", W)
        note(file, prefix + "fc.turned", W.T)
        note(file, prefix + "fc.row", W[1])
        note(file, prefix + "half", W.astype(np.float16))
        note(file, prefix + "steps", np.array(7, np.int64))
    with open("legacy.pt", "wb") as file:
        file.write(pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2) + pickle.dumps(1001, protocol=2))
        file.write(pickle.dumps({"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}, protocol=2))
        file.write(dumped(state, legacy=True))
        file.write(pickle.dumps([storage.key for storage in storages], protocol=2))
        for storage in storages:
            file.write(struct.pack("<q", storage.array.size) + storage.array.tobytes())
    note("legacy.pt", "fc.weight", W)
    note("legacy.pt", "fc.turned", W.T)
    note("legacy.pt", "fc.row", W[1])
    note("legacy.pt", "half", W.astype(np.float16))
    note("legacy.pt", "steps", np.array(7, np.int64))


def hdf5():
    import h5py

    with h5py.File("plain.h5", "w") as file:
        file["group/w"] = W
        file.create_dataset("packed", data=np.arange(40, dtype=">i4").reshape(8, 5), chunks=(3, 5), compression="gzip", shuffle=True)
        file["flag"] = np.array([True, False])
    note("plain.h5", "flag", np.array([True, False]))
    note("plain.h5", "group/w", W)
    note("plain.h5", "packed", np.arange(40, dtype=np.int32).reshape(8, 5))


def keras():
    import keras as k

    k.utils.set_random_seed(1)
    layers = [k.Input((3,)), k.layers.Dense(2, activation="relu", name="hidden"), k.layers.BatchNormalization(name="norm"), k.layers.Dense(1, name="out")]
    model = k.Sequential(layers, name="model")
    model.export("saved")
    pathlib.Path("saved/fingerprint.pb").unlink(missing_ok=True)
    example = np.array([[-1, 2, -3], [0.5, -0.25, 1]], np.float32)
    expected["saved"] = [{"name": "output_0", "values": np.asarray(model(example)).ravel().tolist()}]
    model.save("keras.h5")
    model.save("dense.keras")
    for layer in model.layers:
        for place, variable in enumerate(layer.variables):
            note("keras.h5", variable.path, variable.numpy())
            note("dense.keras", f"{layer.name}/{place}", variable.numpy())


def signatures():
    import tensorflow as tf

    class Model(tf.Module):
        def __init__(self):
            self.v = tf.Variable([1.0, 2.0], name="v")
            self.places = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2]), -1)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "words"), tf.TensorSpec([], tf.float32, "k")])
        def f(self, words, k):
            return {"ids": self.places.lookup(words), "v": self.v * k}

        @tf.function(input_signature=[tf.TensorSpec([], tf.float32, "k")])
        def g(self, k):
            return {"o": self.v + k}

    model = Model()
    tf.saved_model.save(model, "signatures", signatures={"f": model.f, "g": model.g})
    pathlib.Path("signatures/fingerprint.pb").unlink(missing_ok=True)


def tfjs():
    scaled = np.array([0, 51, 255, 102, 7, 9], np.uint8)
    weights = [
        {"name": "dense/kernel", "shape": [2, 3], "dtype": "float32"},
        {"name": "half", "shape": [2, 3], "dtype": "float32", "quantization": {"dtype": "float16", "original_dtype": "float32"}},
        {"name": "scaled", "shape": [6], "dtype": "float32", "quantization": {"dtype": "uint8", "scale": 0.5, "min": -2.0}},
        {"name": "n", "shape": [], "dtype": "int32"},
    ]
    raw = W.tobytes() + W.astype(np.float16).tobytes() + scaled.tobytes() + struct.pack("<i", 7)
    open("group1-shard1of2.bin", "wb").write(raw[:30])
    open("group1-shard2of2.bin", "wb").write(raw[30:])
    manifest = [{"paths": ["group1-shard1of2.bin", "group1-shard2of2.bin"], "weights": weights}]
    json.dump({"format": "layers-model", "generatedBy": "keras v2.15", "weightsManifest": manifest}, open("model.json", "w"))
    note("model.json", "dense/kernel", W)
    note("model.json", "half", W.astype(np.float16).astype(np.float32), "float16")
    note("model.json", "scaled", scaled.astype(np.float32) * np.float32(0.5) - 2, "uint8 with a scale")
    note("model.json", "n", np.array(7, np.int32))


def gguf():
    import gguf as g

    random = np.random.default_rng(1)
    writer = g.GGUFWriter("blocks.gguf", "llama")
    writer.add_name("blocks")
    writer.add_array("tokens", ["a", "b"])
    Type = g.GGMLQuantizationType
    writer.add_tensor("plain", W)
    writer.add_tensor("half", W.astype(np.float16))
    note("blocks.gguf", "plain", W)
    note("blocks.gguf", "half", W.astype(np.float16))
    for kind in [Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.Q4_K, Type.Q5_K, Type.Q6_K]:
        elements, size = g.GGML_QUANT_SIZES[kind]
        raw = random.integers(0, 256, (2, size), dtype=np.uint8)
        # The scales are finite numbers.
        for at in {Type.Q6_K: [208]}.get(kind, [0] if kind in (Type.Q4_0, Type.Q5_0, Type.Q8_0) else [0, 2]):
            raw[:, at : at + 2] = np.array([[0.25], [-0.5]], np.float16).view(np.uint8)
        writer.add_tensor(kind.name, raw, raw_dtype=kind)
        note("blocks.gguf", kind.name, g.quants.dequantize(raw, kind).reshape(2, elements), kind.name)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    if sys.argv[1:] == ["keras"]:
        expected = json.load(open("expected.json"))
        for file in ["keras.h5", "dense.keras", "saved"]:
            expected.pop(file, None)
        keras()
        signatures()
    else:
        for make in [arrays, torch, hdf5, tfjs, gguf]:
            make()
    json.dump(expected, open("expected.json", "w"), indent=0)
