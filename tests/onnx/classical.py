"""Models of ai.onnx.ml of one operator each, in the forms that converters of scikit-learn, LightGBM and XGBoost write, and more:
names, nodes, feeds. The trees and the support vectors are random."""

import itertools

import numpy as np
from onnx import helper

MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]
WIDTH = 4


def trees(random, modes, depth=3, count=3):
    """Lists of nodes, and the leaves: tree and node."""
    nodes = {key: [] for key in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")}
    nodes["missing_value_tracks_true"] = []
    leaves = []

    def grow(tree, level, ids):
        own = next(ids)
        at = len(nodes["treeids"])
        is_leaf = level == depth or level > 0 and random.random() < 0.2
        mode = "LEAF" if is_leaf else random.choice(modes)
        # Features are halves, so that equality is met, too.
        whole = {"treeids": tree, "nodeids": own, "featureids": int(random.integers(WIDTH)), "modes": mode}
        whole |= {"values": float(random.integers(-3, 4) / 2), "missing_value_tracks_true": int(random.integers(2))}
        for key in nodes:
            nodes[key].append(whole.get(key, 0))
        if is_leaf:
            leaves.append((tree, own))
            return own
        nodes["truenodeids"][at] = grow(tree, level + 1, ids)
        nodes["falsenodeids"][at] = grow(tree, level + 1, ids)
        return own

    for tree in range(count):
        grow(tree, 0, itertools.count())
    return {f"nodes_{key}": value for key, value in nodes.items()}, leaves


def forest(random, prefix, targets, low=-1.0, modes=("BRANCH_LEQ",), only=None, every=True):
    """The attributes of an ensemble. `only`: the target of all weights. `every`: each leaf has a weight for every target."""
    attrs, leaves = trees(random, list(modes))
    weights = []
    for tree, node in leaves:
        own = [only] if only is not None else range(targets) if every else [int(random.integers(targets))]
        weights += [(target, tree, node, float(np.float32(random.uniform(low, 1)))) for target in own]
    for key, values in zip(("ids", "treeids", "nodeids", "weights"), zip(*weights)):
        attrs[f"{prefix}_{key}"] = list(values)
    return attrs


def rows(random, with_nan=False):
    x = (random.integers(-4, 5, [6, WIDTH]) / 2).astype(np.float32)
    if with_nan:
        x[random.random(x.shape) < 0.3] = np.nan
    return x


def ensembles(random):
    for targets, function in itertools.product((1, 3), ("SUM", "AVERAGE", "MIN", "MAX")):
        attrs = forest(random, "target", targets, every=targets == 1)
        base = {} if function == "MIN" else {"base_values": [0.25] * targets}
        yield f"regressor_{targets}_{function}", "TreeEnsembleRegressor", attrs | base | {
            "n_targets": targets, "aggregate_function": function,
        }, rows(random), 1
    for mode in MODES:
        attrs = forest(random, "target", 1, modes=[mode])
        yield f"regressor_{mode}", "TreeEnsembleRegressor", attrs | {"n_targets": 1}, rows(random, True), 1
    attrs = forest(random, "target", 2, modes=MODES)
    yield "regressor_of_all_modes", "TreeEnsembleRegressor", attrs | {"n_targets": 2}, rows(random, True), 1
    yield "regressor_of_float64", "TreeEnsembleRegressor", attrs | {"n_targets": 2}, rows(random).astype(np.float64), 1
    for transform in ("SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"):
        attrs = forest(random, "target", 3)
        yield f"regressor_{transform}", "TreeEnsembleRegressor", attrs | {"n_targets": 3, "post_transform": transform}, rows(random), 1
    labels = {"classlabels_int64s": [3, 5]}
    for only, low, transform in itertools.product((0, 1), (0.0, -1.0), ("NONE", "LOGISTIC", "SOFTMAX")):
        attrs = forest(random, "class", 2, low, only=only)
        name = f"classifier_of_class_{only}_from_{low:.0f}_{transform}"
        yield name, "TreeEnsembleClassifier", attrs | labels | {"post_transform": transform}, rows(random), 2
    for only, base in itertools.product((0, 1, None), ([0.125], [0.125, 0.5])):
        attrs = forest(random, "class", 2, only=only)
        name = f"classifier_of_class_{only}_with_{len(base)}"
        # Of two classes with weights, onnxruntime answers 0 and 1 whatever the labels.
        own = labels if only is not None else {"classlabels_int64s": [0, 1]}
        yield name, "TreeEnsembleClassifier", attrs | own | {"base_values": base, "post_transform": "LOGISTIC"}, rows(random), 2
    for low, transform in itertools.product((0.0, -1.0), ("NONE", "LOGISTIC", "SOFTMAX")):
        attrs = forest(random, "class", 2, low)
        name = f"classifier_of_both_from_{low:.0f}_{transform}"
        yield name, "TreeEnsembleClassifier", attrs | {"classlabels_strings": ["no", "yes"], "post_transform": transform}, rows(random), 2
    for every, transform in itertools.product((True, False), ("NONE", "SOFTMAX", "SOFTMAX_ZERO", "LOGISTIC")):
        attrs = forest(random, "class", 4, every=every)
        texts = {"classlabels_strings": ["a", "b", "c", "d"]}
        yield f"classifier_of_four_{every}_{transform}", "TreeEnsembleClassifier", attrs | texts | {"post_transform": transform}, rows(random), 2
    attrs = forest(random, "class", 3)
    more = {"classlabels_int64s": [7, 8, 9], "base_values": [0.5, 0.0, -0.5]}
    yield "classifier_of_three_with_3", "TreeEnsembleClassifier", attrs | more, rows(random), 2
    yield "classifier_of_int64", "TreeEnsembleClassifier", attrs | more, rows(random).astype(np.int64), 2
    attrs = forest(random, "class", 3, low=-1.0, only=1)
    yield "classifier_of_three_by_one", "TreeEnsembleClassifier", attrs | {"classlabels_int64s": [7, 8, 9]}, rows(random) - 2, 2


def others(random):
    numbers = lambda count: [float(x) for x in random.uniform(-1, 1, count).astype(np.float32)]
    for columns, transform in itertools.product((1, 2, 3), ("NONE", "LOGISTIC", "SOFTMAX")):
        labels = {"classlabels_ints": [4, 6]} if columns < 3 else {"classlabels_strings": ["a", "b", "c"]}
        attrs = {"coefficients": numbers(columns * WIDTH), "intercepts": numbers(columns), "post_transform": transform}
        yield f"linear_classifier_{columns}_{transform}", "LinearClassifier", attrs | labels, rows(random), 2
    for targets in (1, 2):
        attrs = {"coefficients": numbers(targets * WIDTH), "intercepts": numbers(targets), "targets": targets}
        yield f"linear_regressor_{targets}", "LinearRegressor", attrs, rows(random), 1
    for norm in ("MAX", "L1", "L2"):
        x = rows(random)
        x[2] = 0
        yield f"normalizer_{norm}", "Normalizer", {"norm": norm}, x, 1
    yield "scaler", "Scaler", {"offset": numbers(WIDTH), "scale": numbers(WIDTH)}, rows(random), 1
    yield "scaler_of_one", "Scaler", {"offset": [0.5], "scale": [2.0]}, rows(random).astype(np.int64), 1
    yield "imputer", "Imputer", {"imputed_value_floats": numbers(WIDTH), "replaced_value_float": float("nan")}, rows(random, True), 1
    yield "imputer_of_ints", "Imputer", {"imputed_value_int64s": [9], "replaced_value_int64": 0}, rows(random).astype(np.int64), 1
    yield "one_hot", "OneHotEncoder", {"cats_int64s": [-1, 0, 2]}, rows(random).astype(np.int64), 1


def machines(random):
    """Support vector machines."""
    numbers = lambda count, most=1.0: [float(x) for x in random.uniform(-most, most, count).astype(np.float32)]
    kernels = {
        "LINEAR": [0.0, 0.0, 0.0], "POLY": [0.5, 0.25, 3.0], "POLY_5": [0.25, 1.0, 5.0], "RBF": [0.05, 0.0, 0.0],
        "SIGMOID": [0.2, -0.1, 0.0],
    }

    def classifier(kernel, per_class, labels, proba=False, transform="NONE"):
        classes, vectors = len(per_class), sum(per_class)
        pairs = classes * (classes - 1) // 2
        attrs = {
            "kernel_type": kernel.split("_")[0], "kernel_params": kernels[kernel], "vectors_per_class": per_class,
            "support_vectors": numbers(vectors * WIDTH, 2.0), "coefficients": numbers((classes - 1) * vectors, 3.0),
            "rho": numbers(pairs), "post_transform": transform,
        }
        if proba:
            attrs |= {"prob_a": [-2.0 + x for x in numbers(pairs)], "prob_b": numbers(pairs)}
        return "SVMClassifier", attrs | labels, rows(random), 2

    of_two = {"classlabels_ints": [4, 6]}
    of_three = {"classlabels_strings": ["a", "b", "c"]}
    of_five = {"classlabels_ints": [1, 2, 3, 5, 8]}
    for kernel in kernels:
        yield f"svm_{kernel}", *classifier(kernel, [2, 3, 1], of_three)
    for transform in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"):
        yield f"svm_of_two_{transform}", *classifier("RBF", [3, 2], of_two, False, transform)
        yield f"svm_of_two_with_probabilities_{transform}", *classifier("RBF", [3, 2], of_two, True, transform)
        yield f"svm_of_three_{transform}", *classifier("LINEAR", [3, 2, 2], of_three, False, transform)
    yield "svm_of_three_with_probabilities", *classifier("RBF", [3, 2, 4], of_three, True)
    yield "svm_of_five_with_probabilities", *classifier("LINEAR", [1, 2, 4, 0, 3], of_five, True)
    for labels, columns in ((of_two, 2), (of_three, 3)):
        for low in (0.0, -1.0):
            attrs = {"kernel_type": "RBF", "kernel_params": kernels["RBF"], "rho": [0.5]}
            attrs |= {"coefficients": [abs(x) if low == 0 else x for x in numbers(columns * WIDTH)]}
            yield f"svm_without_vectors_{columns}_from_{low:.0f}", "SVMClassifier", attrs | labels, rows(random), 2
    op, attrs, x, outputs = classifier("POLY", [2, 2, 2], of_three)
    yield "svm_of_int64", op, attrs, x.astype(np.int64), outputs
    for kernel in kernels:
        attrs = {"kernel_type": kernel.split("_")[0], "kernel_params": kernels[kernel], "n_supports": 5, "rho": numbers(1)}
        attrs |= {"support_vectors": numbers(5 * WIDTH, 2.0), "coefficients": numbers(5, 3.0)}
        yield f"svm_regressor_{kernel}", "SVMRegressor", attrs, rows(random), 1
    yield "svm_of_one_class", "SVMRegressor", attrs | {"one_class": 1}, rows(random), 1
    attrs = {"kernel_type": "LINEAR", "kernel_params": kernels["LINEAR"], "n_supports": 0, "rho": [0.5]}
    yield "svm_regressor_without_vectors", "SVMRegressor", attrs | {"coefficients": numbers(WIDTH)}, rows(random), 1
    x = random.choice(["a", "b", "c"], [5, 1]).astype(object)
    yield "one_hot_of_known_strings", "OneHotEncoder", {"cats_strings": ["a", "b", "c"], "zeros": 0}, x, 1
    x = random.integers(-1, 3, [4, 2])
    yield "one_hot_of_known_ints", "OneHotEncoder", {"cats_int64s": [-1, 0, 1, 2], "zeros": 0}, x, 1
    mapped = {"cats_strings": ["a", "b", "c"], "cats_int64s": [4, 5, 7], "default_string": "none", "default_int64": 9}
    yield "category_mapper_of_strings", "CategoryMapper", mapped, random.choice(["a", "b", "c", "d"], [5, 1]).astype(object), 1
    yield "category_mapper_of_ints", "CategoryMapper", mapped, random.integers(4, 9, [5, 1]), 1


def models():
    """Names, nodes and feeds."""
    random = np.random.default_rng(38)
    # The generator of its own keeps the cases before as they are.
    for name, op, attrs, x, outputs in [*ensembles(random), *others(random), *machines(np.random.default_rng(71))]:
        node = helper.make_node(op, ["x"], ["y", "z"][:outputs], domain="ai.onnx.ml", **attrs)
        yield name, node, x
