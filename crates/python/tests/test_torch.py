"""Conversions of PyTorch's modules, by the values that PyTorch computes."""

import unittest
import warnings
from unittest import mock

import numpy as np
from needs import need

import meshtf

need("torch", "torch", "onnx")

import torch  # noqa: E402
from torch import nn  # noqa: E402

torch.manual_seed(0)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(3, 2)

    def forward(self, a, b):
        return self.line(a) + b, a.sum(dim=1)


class Conversions(unittest.TestCase):
    def by_script(self):
        """The exporter by TorchScript, as without the package onnxscript."""
        return mock.patch.object(meshtf.torch, "_has", lambda package: package != "onnxscript")

    def same(self, graph, module, feeds, names):
        self.assertEqual((list(graph.inputs), list(graph.outputs)), (list(feeds), names))
        module.eval()
        with torch.no_grad():
            values = module(*feeds.values())
        values = values if isinstance(values, tuple) else (values,)
        with meshtf.local() as m, m.session(graph) as s:
            found = s.run(names, {name: one.numpy() for name, one in feeds.items()})
        for name, mine, theirs in zip(names, found, values, strict=True):
            np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-5, atol=1e-5, err_msg=name)

    def test_modules(self):
        dense = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 2), nn.Softmax(dim=-1))
        images = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 5)
        )
        attends = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        cases = [(dense, (4,)), (images, (3, 8, 8)), (nn.LayerNorm(7), (7,)), (nn.GELU(), (3,))]

        def check(module, example):
            with self.subTest(type(module).__name__), warnings.catch_warnings():
                warnings.simplefilter("error")
                module.train()
                graph = meshtf.torch.convert(module, {"x": torch.randn(1, *example)}, outputs=["y"])
                self.assertTrue(module.training)
                for count in (2, 5):
                    self.same(graph, module, {"x": torch.randn(count, *example)}, ["y"])

        with self.by_script():
            for module, example in cases:
                check(module, example)
        need("torch", "onnxscript")
        # The exporter by TorchScript cannot export the last one.
        for module, example in [*cases, (attends, (6, 16))]:
            check(module, example)

    def test_a_branch_on_a_value_is_said(self):
        class Branch(nn.Module):
            def forward(self, x):
                return x + 1 if x.sum() > 0 else x - 1

        with self.by_script(), self.assertWarnsRegex(torch.jit.TracerWarning, "these examples alone: .*Python boolean") as said:
            graph = meshtf.torch.convert(Branch(), {"x": torch.ones(1, 2)}, outputs=["y"])
        self.assertEqual(said.filename, __file__)
        self.same(graph, Branch(), {"x": torch.ones(3, 2)}, ["y"])
        with self.by_script(), warnings.catch_warnings(), self.assertRaises(torch.jit.TracerWarning):
            warnings.simplefilter("error")
            meshtf.torch.convert(Branch(), torch.ones(1, 2))
        need("torch", "onnxscript")
        with self.assertRaisesRegex(meshtf.InvalidArgumentError, "torch.onnx cannot export the module"):
            meshtf.torch.convert(Branch(), torch.ones(1, 2))

    def test_several_inputs_and_outputs(self):
        module, feeds = Two(), {"input_0": torch.randn(4, 3), "input_1": torch.randn(4, 2)}
        self.same(meshtf.torch.convert(module, tuple(feeds.values())), module, feeds, ["output_0", "output_1"])
        fixed = meshtf.torch.convert(nn.Linear(3, 2), torch.zeros(4, 3), open_batch=False)
        self.assertEqual(fixed["input"].shape, (4, 3))

    def test_mistakes_are_named(self):
        class Spectrum(nn.Module):
            def forward(self, x):
                return torch.special.bessel_j0(x)

        class Nothing(nn.Module):
            def forward(self, x):
                return {"y": x}

        for module, inputs, options, kind, part in [
            (Spectrum(), torch.zeros(2), {}, meshtf.InvalidArgumentError, "bessel_j0"),
            (Nothing(), torch.zeros(2), {}, TypeError, "returns dict"),
            (nn.Linear(2, 2), {"x": 5}, {}, TypeError, "the input x is 5"),
            (nn.Linear(2, 2), torch.zeros(1, 2), {"outputs": ["a", "b"]}, meshtf.InvalidArgumentError, "has 1 outputs"),
            (lambda x: x, torch.zeros(2), {}, TypeError, "torch.nn.Module"),
        ]:
            with self.subTest(part), self.assertRaisesRegex(kind, part):
                meshtf.torch.convert(module, inputs, **options)


if __name__ == "__main__":
    unittest.main()
