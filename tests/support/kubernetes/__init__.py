"""A Kubernetes cluster for tests.

Real are, from `scripts/kubernetes`: etcd, kube-apiserver and kube-controller-manager. They give the API with
RBAC, admission, garbage collection, the controllers of workloads, of Endpoints and of lost nodes. Stand-ins:

- `scheduler.py` fits requests of pods to nodes, and never preempts;
- `node.py` is a kubelet: a container is a process of this host, with the files of this host;
- `dns.py` answers for Services.

A pod has an address of its own: its processes run in a network namespace (`network.py`), which takes root.
"""
